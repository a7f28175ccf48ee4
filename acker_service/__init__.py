"""The acker's server: a pure core (``shard``) with doors around it. Import the modules; nothing is re-exported here."""
