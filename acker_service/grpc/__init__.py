"""gRPC: the server's API, its health service, and the check that the advertised address reaches this server.

Entry points: ``servicer.Servicer`` (one method per call), ``listener`` (settings of gRPC), ``health_service``,
``advertised``. Decides nothing about roots: every call goes to the locked shard.
"""
