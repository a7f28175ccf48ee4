"""DDL: schemas as text (``"sku string, qty int"``), read without a Spark session.

Spark itself reads a schema if there is a session. There is none when an operator is declared in a module or called in a
unit test. Then this parser refuses a text that is certainly broken. If only Spark can read a text, the parser
returns None.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

EXAMPLE = "write it like 'word string, count int'"

_TOKEN = re.compile(r"\s*(?:(?P<quoted>`(?:[^`]|``)*`)|(?P<text>'[^']*'|\"[^\"]*\")|(?P<word>\w+)|(?P<sign>[<>(),:]))")

_ATOMIC: dict[str, Callable[[], DataType]] = {
    "boolean": BooleanType, "tinyint": ByteType, "byte": ByteType, "smallint": ShortType, "short": ShortType,
    "int": IntegerType, "integer": IntegerType, "bigint": LongType, "long": LongType, "float": FloatType,
    "real": FloatType, "double": DoubleType, "date": DateType, "timestamp": TimestampType,
    "timestamp_ltz": TimestampType, "timestamp_ntz": TimestampNTZType, "string": StringType, "binary": BinaryType,
    "void": NullType, "variant": VariantType,
}  # fmt: skip
_DECIMAL = ("decimal", "dec", "numeric")
_SIZED_TEXT = ("char", "character", "varchar")
_NESTED = ("array", "map", "struct")
# Types that Spark knows and this parser does not.
_OTHERS = ("interval", "time", "geography", "geometry")
_SUFFIXES = ("collate", "default", "generated", "not", "comment", "options", "to", "with", "without", "day", "year")


class BrokenSchema(ValueError):
    """A text that Spark cannot read as a schema. The message says where it is broken."""


class _Unknown(Exception):
    """The text has something that this parser does not know."""


def parse(text: str) -> StructType | None:
    """Return the columns that ``text`` declares; None if only Spark can read it. Raises :class:`BrokenSchema`."""
    try:
        return _Parser(text).whole()
    except _Unknown:
        return None


class _Parser:
    """One pass over the tokens of a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._at = 0

    def whole(self) -> StructType:
        if not self._tokens:
            return StructType([])
        if self._peek().lower() == "struct" and self._peek(1) == "<":
            kind = self._type("the schema")
            assert isinstance(kind, StructType)
        else:
            kind = self._fields(until="")
        if self._at < len(self._tokens):
            raise self._broken(f"{self._peek()!r} does not belong there")
        return kind

    def _fields(self, until: str) -> StructType:
        fields = [self._field()]
        while self._peek() == ",":
            self._at += 1
            fields.append(self._field())
        if self._peek() != until:
            raise self._broken(
                f"{until!r} is missing" if not self._peek() else f"{self._peek()!r} does not belong there"
            )
        return StructType(fields)

    def _field(self) -> StructField:
        token = self._next_token()
        if token in ("", ",", "<", ">", "(", ")", ":") or token[0] in "'\"":
            raise self._broken("a column has no name")
        name = token[1:-1].replace("``", "`") if token[0] == "`" else token
        if self._peek() == ":":
            self._at += 1
        kind = self._type(f"column {name!r}")
        is_nullable = True
        if self._peek().lower() == "not" and self._peek(1).lower() == "null":
            self._at, is_nullable = self._at + 2, False
        if self._peek().lower() == "comment" and self._peek(1)[:1] in ("'", '"'):
            self._at += 2
        if self._peek().lower() in _SUFFIXES:
            raise _Unknown
        if self._peek() not in (",", ">", ")", ""):
            raise self._broken(f"a comma is missing before {self._peek()!r}")
        return StructField(name, kind, is_nullable)

    def _type(self, whose: str) -> DataType:
        if self._peek() in ("", ",", ">", ")"):
            raise self._broken(f"{whose} has no type")
        word = self._next_token().lower()
        if word in _ATOMIC:
            return _ATOMIC[word]()
        if word in _DECIMAL:
            return DecimalType(*self._sizes())
        if word in _SIZED_TEXT:
            self._sizes()
            return StringType()
        if word in _NESTED and self._peek() == "<":
            return self._nested(word)
        if word in _OTHERS or not word.isidentifier():
            raise _Unknown
        raise self._broken(f"{whose} has the type {word!r}, which Spark does not have")

    def _nested(self, word: str) -> DataType:
        self._at += 1
        if word == "struct" and self._peek() == ">":
            made: DataType = StructType([])
        elif word == "struct":
            made = self._fields(until=">")
        elif word == "array":
            made = ArrayType(self._type("an array"))
        else:
            key = self._type("a map's key")
            if self._next_token() != ",":
                raise self._broken("a map has a key and a value, like map<string, int>")
            made = MapType(key, self._type("a map's value"))
        if self._next_token() != ">":
            raise self._broken(f"'>' is missing behind {word}<...")
        return made

    def _sizes(self) -> list[int]:
        if self._peek() != "(":
            return []
        self._at += 1
        sizes: list[int] = []
        while (token := self._next_token()) != ")":
            if token.isdecimal():
                sizes.append(int(token))
            elif token != ",":
                raise self._broken("a size is not a number, or ')' is missing")
        if len(sizes) > 2:
            raise self._broken("a type has at most two sizes, like decimal(10, 2)")
        return sizes

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def _next_token(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _broken(self, why: str) -> BrokenSchema:
        return BrokenSchema(f"the schema {self._text!r} cannot be read: {why}; {EXAMPLE}")


def _tokens(text: str) -> list[str]:
    tokens, at = list[str](), 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise _Unknown
        tokens.append(match[match.lastgroup or 0])
        at = match.end()
    return tokens
