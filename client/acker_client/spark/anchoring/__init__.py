"""Anchoring: root ids and edges as Arrow columns, and the counts that a task keeps of them. Pure.

Entry points: ``anchors`` (the two columns), ``derive`` (edges of the rows that an operator makes), ``tally.Tally``.
"""
