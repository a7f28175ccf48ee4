"""Draws SQL conditions over columns of all types, and lists the values of these columns. Edge cases are frequent."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

# The values of each column, null among them. Texts are bytes here, because some are no characters.
CHARACTERS = [
    "",
    " ",
    "a",
    "A",
    "ab",
    "aXb",
    "a\nb",
    "abab",
    " a\t",
    "é",
    "\U0001f600",
    "\uffee",
    "100%",
    "a_b",
    "a\\b",
    "[a",
]
TEXTS = [*(text.encode() for text in CHARACTERS), b"\xff", b"a\xc3", b"z" * 40, None]
TIMES = [
    datetime(1582, 10, 1),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(2026, 3, 8, 2, 30),
    datetime(2026, 3, 8, 7, 30, 0, 1),
    datetime(2026, 11, 1, 5, 30),
]
VALUES: dict[str, tuple[str, list[Any]]] = {
    "b": ("boolean", [True, False, None]),
    "y": ("tinyint", [-128, -1, 0, 1, 127, None]),
    "s": ("smallint", [-(2**15), 0, 1, 127, 2**15 - 1, None]),
    "i": ("int", [-(2**31), -1, 0, 1, 5, 2**24 + 1, 2**31 - 1, None]),
    "j": ("int not null", [-1, 0, 1, 5]),
    "l": ("bigint", [-(2**63), -1, 0, 1, 5, 2**24 + 1, 2**53 + 1, 2**63 - 1, None]),
    "f": ("float", [float("-inf"), -1.0, -0.0, 0.0, 0.1, 1.0, 2.0**24, float("inf"), float("nan"), None]),
    "d": ("double", [float("-inf"), -1.0, -0.0, 0.0, 0.1, 1.0, 2.0**53, float("inf"), float("nan"), None]),
    "g": ("double", [-0.0, 0.0, 1.0, float("inf"), float("nan"), None]),
    "e": ("decimal(10,2)", [*map(Decimal, ("-99999999.99", "0.00", "0.10", "1.00", "5.00")), None]),
    "w": ("decimal(38,10)", [*map(Decimal, ("-1e27", "0", "0.1", "1", "1.0000000001")), None]),
    "t": ("string", TEXTS),
    "u": ("string", TEXTS),
    "r": ("binary", [b"", b"\0", b"\x7f", b"\x80", b"\xff\0", b"a", None]),
    "a": ("date", [date(1, 1, 1), date(1969, 12, 31), date(2026, 3, 8), date(9999, 12, 31), None]),
    "c": ("timestamp", [*(time.replace(tzinfo=UTC) for time in TIMES), None]),
    "n": ("timestamp_ntz", [*TIMES, None]),
    "k": ("string collate UTF8_LCASE", ["a", "A", "b", None]),
}  # fmt: skip
LITERALS = {
    "b": ["true", "false"],
    "number": [
        "0", "1", "-1", "5", "127", "2147483647", "9007199254740993", "0.1", "1.0", "1e0", "-0.0D", "double('NaN')",
        "1L", "1Y", "double('Infinity')", "cast('NaN' as float)", "1.5BD", "1.0000000001", "'1'", "float(0.1)",
    ],
    "float": ["double('NaN')", "double('NaN')", "-0.0D", "0.0D", "1e0", "cast('NaN' as float)", "double('-Infinity')"],
    "t": ["''", "'a'", "' '", "'ab'", "'é'", "'\U0001f600'", "'\uffee'", "'A'", "'a\\nb'", "'z'", "cast(1 as string)"],
    "r": ["X''", "X'00'", "X'80'", "X'FF00'", "X'61'"],
    "time": [
        "date'2026-03-08'", "'2026-03-08'", "timestamp'2026-03-08 02:30:00'", "timestamp_ntz'2026-03-08 02:30:00'",
        "'2026-11-01 01:30:00'", "'9999-12-31'", "'today'", "current_date()", "date'1969-12-31'",
    ],
}  # fmt: skip
KINDS = {"b": "b", "number": "ysijlfdgew", "float": "fdg", "t": "tuk", "r": "r", "time": "acn"}
PATTERNS = [
    "a%", "%b", "%a%", "a%b", "%a%b%", "ab%ab", "%", "%%", "", "a", "a_b", "_", "%\\%%", "a\\_b", "%!%", "!%", "[%",
    "%\U0001f600", "a%b%", "%\\\\%", "z%z", "a.b",
]  # fmt: skip

OTHERS = [
    "b", "isnan(d)", "isnan(f)", "isnan(cast(i as double))", "true", "null", "length(t) > 1", "i % 2 = 0", "1 / i > 0",
    "rand() < 2", "upper(t) = 'A'", "if(b, i > 0, true)", "l + 1 > 0", "cast(t as int) = 1", "t rlike 'a'",
    "monotonically_increasing_id() >= 0", "current_timestamp() > c", "t collate UTF8_LCASE = 'A'",
    "cast(k as string) = 'a'",
    "cast(t as string collate UTF8_LCASE) = cast('A' as string collate UTF8_LCASE)",
    "cast('A' as string collate UTF8_LCASE) = cast('a' as string collate UTF8_LCASE)",
]  # fmt: skip


class Draw:
    """Draws SQL conditions."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def condition(self, depth: int = 3) -> str:
        """Return a condition. Spark may refuse it."""
        one = self._random.choice
        if depth and self._random.random() < 0.5:
            left, right = self.condition(depth - 1), self.condition(depth - 1)
            return one([f"({left} and {right})", f"({left} or {right})", f"(not {left})", f"(({left}) <=> ({right}))"])
        return one([
            self.comparison, self.comparison, self.comparison, self.comparison, self.like, self.like, self.membership,
            self.nullness, self.other,
        ])()  # fmt: skip

    def operand(self, kind: str) -> str:
        """Return a column or a literal of this kind."""
        one = self._random.choice
        if self._random.random() < 0.08:
            return f"{one(['coalesce', 'nvl'])}({one(KINDS[kind])}, {one(LITERALS[kind])})"
        if kind == "t" and self._random.random() < 0.15:
            return f"trim({one('tu')})"
        return one(KINDS[kind]) if self._random.random() < 0.6 else one([*LITERALS[kind], *LITERALS[kind], "null"])

    def comparison(self) -> str:
        kind = self._random.choice([*KINDS, "number", "number"])
        sign = self._random.choice(["=", "<>", "<", "<=", ">", ">=", "<=>", "between"])
        right = self.operand(kind) + (f" and {self.operand(kind)}" if sign == "between" else "")
        return f"({self._random.choice(KINDS[kind])} {sign} {right})"

    def like(self) -> str:
        one = self._random.choice
        text, pattern, no = one("ttuk"), one(PATTERNS).replace("\\", "\\\\"), one(["", "not "])
        function = f"{no}{one(['startswith', 'endswith', 'contains'])}({text}, {one(LITERALS['t'])})"
        escape = " escape '!'" if "!" in pattern else ""
        return one([f"{text} {no}like '{pattern}'{escape}", f"({function})"])

    def membership(self) -> str:
        kind = self._random.choice([*KINDS, "t"])
        options = [self._random.choice([*LITERALS[kind], "null"]) for _ in range(self._random.randint(1, 14))]
        return f"({self._random.choice(KINDS[kind])} {self._random.choice(['', 'not '])}in ({', '.join(options)}))"

    def nullness(self) -> str:
        column = self._random.choice([*VALUES, "t = 'a'", "trim(t)"])
        return f"(({column}) is {self._random.choice(['', 'not '])}null)"

    def other(self) -> str:
        return self._random.choice(OTHERS)
