"""Commit evidence: decides from what Spark ran whether a batch's rows were delivered.

Entry points: ``evidence.judge`` (the rules, pure, with their table of cases), ``batch`` (one batch's evidence),
``following`` (frames that record what the sink does with them), ``executions`` (Spark's status stores).
"""
