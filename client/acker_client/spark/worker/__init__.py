"""Worker: what runs in a Spark task: a chain of steps over the rows, their schemas, and notes for the driver.

Entry points: ``chain``, ``rows``, ``notes``. Knows nothing about plans.
"""
