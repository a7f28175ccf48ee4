"""Dead letters as a source that reads each of them once more.

Entry points: ``put_back.PutBack``, ``store.put_back``.
"""

from acker_client.source.put_back.put_back import PutBack

__all__ = ["PutBack"]
