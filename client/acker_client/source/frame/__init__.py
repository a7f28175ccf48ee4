"""A DataFrame, or each micro-batch of a streaming query, as a source.

Entry points: ``frame.Frame``, ``frame.tracked``.
"""
