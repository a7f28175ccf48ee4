"""Progress bar: a line in a terminal, a widget in a notebook. Only this module imports tqdm."""

from __future__ import annotations

import sys
from importlib import util
from typing import Any

from acker_client.extras import missing
from acker_client.source.engine.progress_report import Bar
from acker_client.source.records.progress import Progress


def bar_for(wanted: bool | None, name: str) -> Bar | None:
    """Return the bar of the source ``name``, or None. ``wanted``: None shows one in a terminal or a notebook if tqdm
    is installed. Raises ``ImportError``, which says what to install."""
    if wanted or (wanted is None and _is_watched() and util.find_spec("tqdm") is not None):
        return ProgressBar(name)
    return None


class ProgressBar:
    """Draws what is done of the records that were read. The bar begins with the first ``show``, and goes away when it
    is closed."""

    def __init__(self, name: str) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            raise missing("progress=True", "progress", error) from error
        self._name = name
        self._new_bar: Any = tqdm
        self._bar: Any = None

    def show(self, progress: Progress, records_per_s: float) -> None:
        if self._bar is None:
            form = "{percentage:3.0f}%|{bar:20}| {desc}"
            self._bar = self._new_bar(
                total=0, desc=self._name, file=sys.stderr, leave=False, dynamic_ncols=True, bar_format=form
            )
        self._bar.n, self._bar.total = progress.done, progress.records
        self._bar.set_description_str(f"{self._name}: {progress.line(records_per_s)}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _is_watched() -> bool:
    """Return whether a person sees what is written to stderr: in a terminal, or in a notebook."""
    return bool(sys.stderr is not None and sys.stderr.isatty()) or _is_notebook()


def _is_notebook() -> bool:
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None
