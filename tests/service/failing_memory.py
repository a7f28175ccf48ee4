"""Failing memory: lets the n-th allocation of a call fail, of Python's objects, numpy's arrays and numba's records
alike.

Uses the hooks that CPython has for its own tests. They count all allocations of Python's three domains. Numpy and numba
are told to allocate through one of these domains.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_testcapi: Any = importlib.import_module("_testcapi")
_nrt: Any = importlib.import_module("numba.core.runtime._nrt_python")
_numpy: Any = importlib.import_module("numpy._core._multiarray_umath")

# An allocation that no test reaches.
NEVER = 1 << 30
_RAW_DOMAIN = 0
# Places of functions in numpy's C API; they stay the same.
_SET_HANDLER = 304
_KEPT: list[object] = []


class _Allocator(ctypes.Structure):
    """PyMemAllocatorEx of Python, and PyDataMemAllocator of numpy."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("ctx", "malloc", "calloc", "realloc", "free")]


class _Handler(ctypes.Structure):
    """PyDataMem_Handler of numpy."""

    _fields_ = [("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("allocator", _Allocator)]


@contextmanager
def counted() -> Iterator[Callable[..., bool]]:
    """Yield ``call(function, first, count)``: it calls the function while ``count`` allocations from number ``first``
    on fail. Returns whether the function succeeded. Whatever it raises counts as a failure.

    The hooks know no threads, and a thread that finds no memory while it releases a lock keeps that lock for ever. So
    there must be no other thread."""
    _nrt.memsys_use_cpython_allocator()
    set_handler = _numpy_function(_SET_HANDLER)
    before = set_handler(_counting_handler())
    gc.disable()

    def call(function: Callable[[], object], first: int, count: int = 1) -> bool:
        _testcapi.set_nomemory(first, first + count)
        try:
            function()
        except (MemoryError, SystemError, RuntimeError):
            # Some functions in C do not say why they failed, and some name the lock that they could not make.
            return False
        finally:
            _testcapi.remove_mem_hooks()
            # Numpy still counts.
            _testcapi.set_nomemory(NEVER)
            _testcapi.remove_mem_hooks()
        return True

    try:
        yield call
    finally:
        gc.enable()
        set_handler(before)


@cache
def _counting_handler() -> Any:
    """Return a capsule with a handler that lets numpy allocate through the hooks."""
    _testcapi.set_nomemory(NEVER)
    handler = _Handler(b"counted", 1)
    ctypes.pythonapi.PyMem_GetAllocator(_RAW_DOMAIN, ctypes.byref(handler.allocator))
    _testcapi.remove_mem_hooks()
    # Each array needs its handler until its end.
    _KEPT.append(handler)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(handler), b"mem_handler", None)


def _numpy_function(place: int) -> Any:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = pointer(_numpy._ARRAY_API, None)
    address = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[place]
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(address)
