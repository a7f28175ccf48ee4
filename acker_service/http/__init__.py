"""HTTP: probes and metrics of one server.

Entry points: ``server.HttpServer``, ``metrics`` (the only module that imports prometheus_client), and ``health`` (the
command ``python -m acker_service health``, which asks another server). ``probes`` decides what is live and
ready.
"""
