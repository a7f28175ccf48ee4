"""What both sides must agree on: ids, reports, messages and the wire.

Import the modules; this package re-exports nothing.
"""
