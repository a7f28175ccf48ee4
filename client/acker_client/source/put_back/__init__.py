"""Put back: dead letters as a source that is read once. Entry points: ``put_back.PutBack``, ``store.put_back``."""

from acker_client.source.put_back.put_back import PutBack

__all__ = ["PutBack"]
