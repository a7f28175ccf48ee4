"""ZooKeeper: the server's registration and its view of the cluster. Only ``registry`` imports kazoo."""
