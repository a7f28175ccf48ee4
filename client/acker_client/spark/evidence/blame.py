"""Blame: whether an error that broke a batch is the program's, so that trying again cannot help.

Decides by the kind of the error: what the guard refused, what an operator returned against its own schema, what Spark
could not analyse. Anything else may be of a record, of Spark or of what is written to.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException

from acker_client.spark.core.evidence import Undelivered
from acker_client.spark.core.pages import OtherRows
from acker_client.spark.core.tally import MultipliedEdges
from acker_client.spark.task.returns import OperatorError

# In a task they are raised in another process, and only their names come back.
_RAISED_IN_TASKS = tuple(f"{kind.__module__}.{kind.__name__}:" for kind in (OperatorError, MultipliedEdges, OtherRows))


def is_of_the_program(error: BaseException) -> bool:
    """Whether ``error`` would come again with any record, at any other try."""
    if isinstance(error, (OperatorError, OtherRows, AnalysisException)) or getattr(error, "is_of_the_program", False):
        return True
    text = str(error)
    return any(name in text for name in _RAISED_IN_TASKS)


def other_rows(error: BaseException) -> str:
    """What a frame that gives other rows when it is computed anew has broken; nothing ("") where none did."""
    if isinstance(error, OtherRows):
        return str(error)
    _, _, said = str(error).partition(f"{OtherRows.__module__}.{OtherRows.__name__}: ")
    return said.partition("\n")[0]


def is_without_evidence(error: BaseException) -> bool:
    """Whether nothing wrote the batch, and no write of it failed."""
    return isinstance(error, Undelivered) and not error.is_transient
