"""Extras: what to install where an import fails. Decides one sentence; the packages that need an extra raise it."""

from __future__ import annotations


def missing(package: str, extra: str, error: ImportError) -> ImportError:
    """The error of importing ``package`` without what ``extra`` of acker brings."""
    if not error.name:  # it is here, and not as it must be; the error says why
        return ImportError(f"{package}: {error}")
    lacking = f"{error.name}, which is not here"
    return ImportError(f"{package} needs {lacking}: pip install 'acker[{extra}]' ({error})", name=error.name)
