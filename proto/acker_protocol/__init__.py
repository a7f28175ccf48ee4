"""What client and server must agree on: ids, placement, reports, messages and the wire.

Import the modules; this package re-exports nothing.
"""
