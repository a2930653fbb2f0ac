"""What was probably meant by a word that is none of those that there are.

Likeness takes time in the product of the lengths, and somebody may write many words that are long or meant for many
names. A `Finder` looks as long as that is quick, and from then on has nothing to say.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final, final

LONGEST_WORD: Final = 100
# Pairs of characters; about half a second.
MAX_PAIRS: Final = 2_000_000


def closest(word: str, candidates: Collection[str], cutoff: float = 0.6) -> str:
    """The one of a few candidates that is most like the word, upper and lower case being alike, or ""."""
    if len(word) > LONGEST_WORD:
        return ""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    found = get_close_matches(word.lower().replace("-", "_"), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else ""


@final
class Finder:
    """Looks for many words among the same names, of which there may be many."""

    def __init__(self, names: Collection[str]) -> None:
        self._names: Final = names
        self._characters: Final = sum(map(len, names))
        self._left = MAX_PAIRS

    def closest(self, word: str) -> str:
        """The name that is most like the word; "" where none is, or no more is looked for."""
        self._left -= self._characters * len(word)
        found = get_close_matches(word, self._names, n=1) if self._left >= 0 else ()
        return found[0] if found else ""
