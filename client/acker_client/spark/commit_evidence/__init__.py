"""Commit evidence: decides whether a batch's rows were delivered, from the executions and jobs that Spark ran.

Entry points: ``evidence.judge`` (the rules, pure, with their table of cases), ``batch`` (one batch's evidence),
``following`` (frames that record what the sink does with them), ``executions`` (Spark's status stores).
"""
