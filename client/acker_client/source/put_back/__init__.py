"""Dead letters as a source that reads each of them once more.

Entry points: ``put_back.PutBack``, ``store.put_back``.
"""
