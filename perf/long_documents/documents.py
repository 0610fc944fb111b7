"""Documents of many pages, of which a share came before, whole."""

from __future__ import annotations

import itertools
from random import Random

from perf.load.texts import PAGES, Texts

Document = tuple[str, ...]
"""A document is its pages' texts."""


def documents(texts: Texts, *, count: int, pages: int, repeats: float, seed: str) -> list[Document]:
    """Return so many documents; `repeats` of them, to the nearest whole one, are copies of an earlier one. Equal seeds give equal ones."""
    random = Random(seed)
    copies = min(count - 1, round(count * repeats))
    are_copies = [False, *random.sample([True] * copies + [False] * (count - 1 - copies), count - 1)]
    deck = texts.deck(PAGES, seed=seed)
    made: list[Document] = []
    for is_copy in are_copies:
        made.append(random.choice(made) if is_copy else tuple(page.text for page in itertools.islice(deck, pages)))
    return made
