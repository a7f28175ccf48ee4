"""The server's doors, one for each foreign library or protocol: gRPC, HTTP, Prometheus, files. None knows another."""
