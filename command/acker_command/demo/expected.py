"""Expected: the result of each line, derived in plain Python from the files themselves.

It shares no code with the pipeline and knows neither Spark nor the acker. A word is a run of at least four ASCII
letters and underscores, in lower case. Equal words of a line are counted, and each has a category.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import numpy.typing as npt
import pandas as pd

from acker_command.demo.categories import CATEGORIES, NAME
from acker_command.demo.corpus import Corpus

_WORD = re.compile("[A-Za-z_]{4,}")


@dataclass(frozen=True, slots=True)
class Expected:
    """``rows`` has the columns record, word, category and count, and a row for each different word of each record.
    ``digests: uint64[records]`` holds the sum of the digests of each record's rows. ``must_die: bool[records]`` is true
    for lines that have to become dead letters: they raise each time, or are not UTF-8."""

    rows: pd.DataFrame
    digests: npt.NDArray[np.uint64]
    must_die: npt.NDArray[np.bool_]


def derive(text: Corpus, is_poison: Callable[[str], bool]) -> Expected:
    """Read every line of ``text`` and derive its result."""
    records: list[int] = []
    words: list[str] = []
    must_die = np.zeros(text.records, np.bool_)
    for record, (_, _, content) in enumerate(text.lines()):
        try:
            line = content.decode()
        except UnicodeDecodeError:
            must_die[record] = True
            continue
        must_die[record] = is_poison(line)
        found = _WORD.findall(line)
        words += map(sys.intern, map(str.lower, found))
        records += repeat(record, len(found))
    every = pd.DataFrame({"record": np.array(records, np.int64), "word": np.array(words, object)})
    rows = every.groupby(["record", "word"], sort=False).size().reset_index(name="count")
    rows["category"] = rows["word"].map(CATEGORIES).fillna(NAME)
    digests = digests_of(rows).groupby(rows["record"]).sum().reindex(range(text.records), fill_value=0)
    return Expected(rows, digests.to_numpy(np.uint64), must_die)


def digests_of(rows: pd.DataFrame) -> pd.Series:
    """Return a 64-bit digest of each row's word, category and count."""
    return pd.util.hash_pandas_object(rows[["word", "category", "count"]], index=False)
