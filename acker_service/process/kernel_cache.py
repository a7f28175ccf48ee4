"""Kernel cache: where numba keeps compiled kernels, so that a server compiles none at its start.

Decides between three places: beside the module, if kernels for this processor are there, or may be written there; else
the user's cache, or a directory for temporary files. numba itself never reads kernels that it could not replace, as in
a container with a read-only file system. Kernels are code, so nobody else may write where they are read from.

numba finds :class:`KernelCache` by the variable NUMBA_CACHE_LOCATOR_CLASSES (numba 0.62 or newer), which the server
and the images set. Nothing else imports this module.
"""

# numba has no types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,attr-defined"

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path

from numba.core import config
from numba.core.caching import IndexDataCacheFile, InTreeCacheLocator
from numba.core.registry import cpu_target


class KernelCache(InTreeCacheLocator):
    """The place of one function's kernels."""

    @classmethod
    def from_function(cls, py_func, py_file):
        """Return the place; None if the function is in no file, or the variable NUMBA_CACHE_DIR decides."""
        if config.CACHE_DIR or not os.path.exists(py_file):
            return None
        place = cls(py_func, py_file)
        if not place._is_compiled(py_func) and not place._is_writable():
            place._cache_path = str(private_directory() / cls.get_suitable_cache_subpath(py_file))
        return place

    def _is_compiled(self, function) -> bool:
        """Return whether kernels of this source, for this processor, are beside the module."""
        module = Path(self._py_file).stem
        version = f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"
        name = f"{module}.{function.__qualname__}-{self.get_disambiguator()}.{version}"
        index = IndexDataCacheFile(self._cache_path, name, self.get_source_stamp())._load_index()
        processor = cpu_target.target_context.codegen().magic_tuple()
        return any(key[1] == processor for key in index)

    def _is_writable(self) -> bool:
        try:
            self.ensure_cache_path()
        except OSError:
            return False
        return True


def private_directory() -> Path:
    """Return a directory for kernels that only this user may write. Raises OSError."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for path in (Path(cache, "acker"), Path(tempfile.gettempdir(), f"acker-kernels-{os.geteuid()}")):
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = path.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077:
            return path
    raise OSError(
        "there is no place for compiled kernels: set NUMBA_CACHE_DIR to a directory that only this user may write"
    )
