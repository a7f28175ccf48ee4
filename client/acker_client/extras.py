"""Extras: the error for a failed import, which says what to install. The packages that need an extra raise it."""

from __future__ import annotations


def missing(package: str, extra: str, error: ImportError) -> ImportError:
    """Return the error for an import of ``package`` without the packages that acker's ``extra`` installs."""
    if not error.name:  # the module is installed but cannot be used; the error says why
        return ImportError(f"{package}: {error}")
    lacking = f"{error.name}, which is not here"
    return ImportError(f"{package} needs {lacking}: pip install 'acker[{extra}]' ({error})", name=error.name)
