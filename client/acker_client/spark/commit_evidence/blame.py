"""Blame: whether an error that broke a batch is the program's, so that trying again cannot help.

Decides by the kind of the error: what the guard or another function of the acker refused, what an operator returned
against its own schema, what Spark could not analyse, a name that is not defined. A wrong call or attribute is the
program's as long as the driver has seen no row of the batch. Anything else may be of a record, of Spark or of what is
written to.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException

from acker_client.spark.anchoring.pages import OtherRows
from acker_client.spark.anchoring.tally import MultipliedEdges
from acker_client.spark.commit_evidence.evidence import Undelivered
from acker_client.spark.worker.returns import OperatorError

# What a wrong call, a wrong attribute or a missing module raises; a value of a row may raise them, too.
MISTAKES = (TypeError, AttributeError, ImportError)

# In a task they are raised in another process, and only their names come back.
_RAISED_IN_TASKS = tuple(f"{kind.__module__}.{kind.__name__}:" for kind in (OperatorError, MultipliedEdges, OtherRows))


def is_of_the_program(error: BaseException) -> bool:
    """Whether ``error`` would come again with any record, at any other try."""
    if getattr(error, "is_of_the_program", False) or _is_refused_argument(error):
        return True
    if isinstance(error, (OperatorError, OtherRows, AnalysisException, NameError)):
        return True
    text = str(error)
    return any(name in text for name in _RAISED_IN_TASKS)


def is_mistake(error: BaseException) -> bool:
    """Whether ``error`` is the program's unless a row was at hand to cause it."""
    return isinstance(error, MISTAKES) or getattr(error, "is_mistake", False)


def _is_refused_argument(error: BaseException) -> bool:
    """Whether a function of the acker raised ``error`` for what it was called with."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    module = "" if at is None else str(at.tb_frame.f_globals.get("__name__"))
    return isinstance(error, (TypeError, ValueError)) and module.startswith("acker_client.")


def other_rows(error: BaseException) -> str:
    """What a frame that gives other rows when it is computed anew has broken; nothing ("") where none did."""
    if isinstance(error, OtherRows):
        return str(error)
    _, _, said = str(error).partition(f"{OtherRows.__module__}.{OtherRows.__name__}: ")
    return said.partition("\n")[0]


def is_without_evidence(error: BaseException) -> bool:
    """Whether a batch is not done, and no write of it failed."""
    return isinstance(error, Undelivered) and not error.is_transient
