"""Blame: whether the program itself caused the error that broke a batch, so that a retry cannot help.

Decides by the kind of the error. The program is to blame for what the plan guard or another function of the acker
refused, an operator's output without the declared form, a plan that Spark could not analyse, and an undefined name.
It is also to blame for a wrong call or attribute, as long as the driver has seen no row of the batch. Any other error
may come from a record, from Spark or from the target of a write.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException

from acker_client.spark.anchoring.pages import OtherRows
from acker_client.spark.anchoring.tally import MultipliedEdges
from acker_client.spark.commit_evidence.evidence import Undelivered
from acker_client.spark.worker.returns import OperatorError

# The errors of a wrong call, a wrong attribute or a missing module. A value in a row may cause them too.
MISTAKES = (TypeError, AttributeError, ImportError)

# Errors in a task are raised in another process, and only their text reaches the driver.
_RAISED_IN_TASKS = tuple(f"{kind.__module__}.{kind.__name__}:" for kind in (OperatorError, MultipliedEdges, OtherRows))


def is_of_the_program(error: BaseException) -> bool:
    """Whether ``error`` would occur with any record and in any retry."""
    if getattr(error, "is_of_the_program", False) or _is_refused_argument(error):
        return True
    if isinstance(error, (OperatorError, OtherRows, AnalysisException, NameError)):
        return True
    text = str(error)
    return any(name in text for name in _RAISED_IN_TASKS)


def is_mistake(error: BaseException) -> bool:
    """Whether ``error`` is a mistake of the program, provided that no row of the batch can have caused it."""
    return isinstance(error, MISTAKES) or getattr(error, "is_mistake", False)


def _is_refused_argument(error: BaseException) -> bool:
    """Whether a function of the acker raised ``error`` about its arguments."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    module = "" if at is None else str(at.tb_frame.f_globals.get("__name__"))
    return isinstance(error, (TypeError, ValueError)) and module.startswith("acker_client.")


def other_rows(error: BaseException) -> str:
    """Return the message of :class:`OtherRows` if ``error`` is one or was caused by one in a task, else ""."""
    if isinstance(error, OtherRows):
        return str(error)
    _, _, message = str(error).partition(f"{OtherRows.__module__}.{OtherRows.__name__}: ")
    return message.partition("\n")[0]


def is_without_evidence(error: BaseException) -> bool:
    """Whether ``error`` only says that evidence is missing: no write of the batch failed."""
    return isinstance(error, Undelivered) and not error.is_transient
