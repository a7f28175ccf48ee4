"""Dead letters as a source that reads each letter's record once more.

Entry points: ``put_back.PutBack``, ``store.put_back``.
"""

from acker_client.source.put_back.put_back import PutBack

__all__ = ["PutBack"]
