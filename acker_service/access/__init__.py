"""Who may call the server: its certificate, the tokens of callers, and the role that each call needs.

``certificates`` and ``tokens`` read files, and read them again when they change. ``roles`` is pure: it decides which
roles may make a call. Knows neither gRPC nor HTTP: these pass on what a caller has shown.
"""
