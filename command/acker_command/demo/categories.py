"""Categories: the small table that words are joined with. It is data, nothing else: pipeline and verifier both read
it."""

from __future__ import annotations

import builtins
import keyword

_ENGLISH = """
    about above after all also always another any are because been before being below between both but can cannot
    could did does doing done down during each either even every few first for from further had has have having her
    here him his how however into its just last less like made make many may might more most much must need neither
    never new next nor not now off once one only onto other otherwise our out over own per rather same see she should
    since some still such than that the their them then there these they this those three through too two under until
    upon use used using very was way well were what when where whether which while who whose why will with within
    without would yet you your
"""

CATEGORIES: dict[str, str] = (
    dict.fromkeys(_ENGLISH.split(), "english")
    | {name.lower(): "builtin" for name in dir(builtins) if name.isidentifier()}
    | {word.lower(): "keyword" for word in keyword.kwlist}
)
"""Lower-case word -> category; a word that is not in it has the category NAME."""

NAME = "name"
