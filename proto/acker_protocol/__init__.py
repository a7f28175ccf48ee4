"""The agreement between client and server: ids, placement, reports, messages and the wire.

Import the modules; this package re-exports nothing.
"""
