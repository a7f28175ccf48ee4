"""Plan check: which Spark plans may stand between tracked steps, and when steps run fused in one task.

Entry points: ``plan`` (refuses a plan, with the reason), ``fusing`` (joins a step to the chain before it).
"""
