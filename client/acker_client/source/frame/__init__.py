"""A DataFrame, or each micro-batch of a streaming query, as a source.

Entry points: ``frame.Frame``, ``frame.tracked``.
"""

from acker_client.source.frame.frame import Frame, Tracked, tracked

__all__ = ["Frame", "Tracked", "tracked"]
