"""Driver: what the acker needs from Spark in the driver: the session, the executors, and the planned steps.

Entry points: ``session`` (settings and checks of a session), ``lineage`` (the planned steps), ``check`` (executors).
"""
