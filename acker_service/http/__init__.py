"""HTTP: probes, metrics and the drain endpoint of one server.

Entry points: ``server.HttpDoor``, ``metrics`` (the only module that imports prometheus_client), and ``health`` (the
command ``python -m acker_service health``, which asks another server).
"""
