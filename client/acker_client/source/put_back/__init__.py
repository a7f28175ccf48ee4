"""Put back: dead letters as a source that is read once. Entry points: ``put_back.PutBack``, ``store.put_back``."""
