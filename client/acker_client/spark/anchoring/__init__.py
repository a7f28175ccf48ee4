"""Anchoring: root ids and edges as Arrow columns, and a task's account of them. Pure.

Entry points: ``anchors`` (the two columns), ``derive`` (edges of the rows that an operator makes), ``tally.Tally``.
"""
