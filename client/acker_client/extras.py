"""Extras: what to install where an import fails. Decides one sentence; the packages that need an extra raise it."""

from __future__ import annotations


def missing(package: str, extra: str, error: ImportError) -> ImportError:
    """The error of importing ``package`` without what ``extra`` of acker brings."""
    lacking = f"{error.name}, which is not here" if error.name else "what cannot be imported here"
    return ImportError(f"{package} needs {lacking}: pip install 'acker[{extra}]' ({error})", name=error.name)
