"""Error text: shortens an error of Spark or its Python workers to one line, and shows objects that cannot be shown.

Decides which line to show: the exception of the user's own code if a Python worker raised one, else the first line of
the JVM with its last cause. Pure: it only reads the text that Spark writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# People read a reason. The whole traceback belongs in the log of the process that failed.
REASON_LENGTH_MAX = 500

_TRACEBACK = "Traceback (most recent call last):"
_JAVA_CALL = re.compile(r"^An error occurred while calling [^\n]*\n: ")
_MODULE = re.compile(r"^(?:[A-Za-z_$][\w$]*\.)+(?=[A-Za-z_$][\w$]*(?::\s|:?$))")
_STATE = re.compile(r"\s*SQLSTATE: \w+.*$")
# The text that Spark writes before the failure itself.
_FRONTS = (
    re.compile(r"^.*\bmost recent failure: Lost task [^\n]*?\([^()\n]*executor[^()\n]*\): "),
    re.compile(r"^.*\bterminated with exception: "),
)
_CAUSE = re.compile(r"^Caused by: (?P<said>.*)$", re.MULTILINE)


def safe_text(value: object, as_text: Callable[[object], str] = str) -> str:
    """Return the text of an object from user code, or the name of its type if ``as_text`` raises for it."""
    try:
        return as_text(value)
    except Exception:  # noqa: BLE001  # the user's __str__ or __repr__ may raise anything
        return type(value).__name__


def shorten(error: BaseException | str) -> str:
    """Return an exception, or the text of one, as one line of at most ``REASON_LENGTH_MAX`` characters."""
    text = str(error).strip()
    kind = type(error).__name__ if isinstance(error, BaseException) else ""
    first = text.partition("\n")[0]
    raised = _raised_in_python(text)
    if raised:
        # The acker's own reasons begin with the operator and the exception, and the traceback follows.
        line = first if f": {raised}" in first else raised
    elif _JAVA_CALL.match(text):
        line = _java(_JAVA_CALL.sub("", text))
    else:
        said = _java(text)
        line = ": ".join(part for part in (kind, said) if part)
    return line if len(line) <= REASON_LENGTH_MAX else line[: REASON_LENGTH_MAX - 3] + "..."


def _raised_in_python(text: str) -> str:
    """Return the exception of the last traceback in ``text``; "" if there is none."""
    _, found, after = text.rpartition(_TRACEBACK)
    lines = (line for line in after.splitlines()[1:] if line.strip() and not line[0].isspace())
    return _plain(next(lines, "")) if found else ""


def _java(text: str) -> str:
    """Return the first line of the JVM, and the last cause that it names, without names of packages."""
    first, causes = _plain(text.partition("\n")[0]), _CAUSE.findall(text)
    if not causes:
        return first
    cause = _plain(causes[-1])
    if cause in first:
        return first
    return cause if not first or first.endswith(":") else f"{first} (caused by {cause})"


def _plain(line: str) -> str:
    for front in _FRONTS:
        line = front.sub("", line)
    return _STATE.sub("", _MODULE.sub("", line.strip())).strip()
