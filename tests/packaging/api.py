"""API: the public names of the packages as a page of Markdown, each with its signature and its docstring."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from enum import Enum
from types import ModuleType
from typing import Any, ForwardRef

import acker_client
import acker_client.source
import acker_client.spark
import acker_testing

MODULES: list[ModuleType] = [
    acker_client,
    acker_client.source,
    acker_client.spark,
    acker_client.spark.functions,
    acker_testing,
]


class Raw(str):
    """Text that a signature shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def page() -> str:
    """Return the page: all modules, one below the other."""
    return "\n".join(part for module in MODULES for part in _module(module))


def summary(value: object) -> str:
    """Return the first paragraph of a docstring in one line, for a cell of a table."""
    first = _markdown(inspect.getdoc(value) or "").partition("\n\n")[0]
    return " ".join(first.split()).replace("|", "\\|")


def _module(module: ModuleType) -> Iterator[str]:
    yield f"## {module.__name__}\n"
    for name in sorted(getattr(module, "__all__", ["ack", "fail"])):
        value = getattr(module, name)
        if not isinstance(value, ModuleType):
            yield from _entry(name, value)


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}\n"
    is_class = isinstance(value, type)
    is_plain = is_class and not issubclass(value, BaseException | Enum)
    if is_plain or inspect.isfunction(value):
        yield f"```py\n{name}{_signature(value)}\n```\n"
    # If a dataclass has no docstring, Python makes one from its signature.
    text = inspect.getdoc(value) or ""
    if text and not text.startswith(f"{name}("):
        yield f"{_markdown(text)}\n"
    if is_class and issubclass(value, Enum):
        yield "".join(f"- `{each.name}`\n" for each in value)
    if is_plain:
        methods = [_method(method, each) for method, each in vars(value).items() if _is_documented(method, each)]
        yield "".join(methods)


def _is_documented(name: str, value: object) -> bool:
    kinds = (property, classmethod, staticmethod)
    return not name.startswith("_") and (isinstance(value, kinds) or inspect.isfunction(value))


def _method(name: str, value: Any) -> str:
    if isinstance(value, property):
        return f"- `{name}`: {summary(value)}\n"
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    shown = _signature(function, has_self=not isinstance(value, staticmethod), width=10_000)
    return f"- `{name}{shown}`: {summary(function)}\n"


def _signature(value: Any, *, has_self: bool = False, width: int = 100) -> str:
    try:
        signature = inspect.signature(value)
    except ValueError:
        return "(...)"
    parameters = [_plain(each) for each in list(signature.parameters.values())[int(has_self) :]]
    result = signature.return_annotation
    result = Raw(result) if isinstance(result, str) and not isinstance(value, type) else inspect.Signature.empty
    text = str(signature.replace(parameters=parameters, return_annotation=result))
    if len(text) <= width:
        return text
    inner, _, tail = text[1:].rpartition(")")
    shown = re.split(r", (?![^\[\(\{]*[\]\)\}])", inner)
    return "(\n" + "".join(f"    {each},\n" for each in shown) + f"){tail}"


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    annotation, default = parameter.annotation, parameter.default
    if isinstance(annotation, str | ForwardRef):
        annotation = Raw(annotation if isinstance(annotation, str) else annotation.__forward_arg__)
    if default is os.environ:  # must not print the environment of this machine
        default = Raw("os.environ")
    elif callable(default) and default is not inspect.Parameter.empty:
        default = Raw(getattr(default, "__name__", "..."))
    return parameter.replace(annotation=annotation, default=default)


def _markdown(docstring: str) -> str:
    """Return a docstring as Markdown: code in backticks, examples indented."""
    text = re.sub(r":(?:class|func|meth|mod|data):`~?([\w.]+)`", r"`\1`", docstring).replace("``", "`")
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    return re.sub(r"^(>>>|\.\.\.)", r"    \1", text, flags=re.MULTILINE)
