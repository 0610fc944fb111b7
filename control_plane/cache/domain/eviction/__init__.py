"""Which answers to keep in a bounded number of bytes, and for how long: level one of the response cache.

What is kept is what saves most per byte and time: an answer's cost, times how soon it is likely to be asked for again, by its bytes.
How soon is learned from the traffic itself, as a rate of reuse by how often a key was asked for, at what intervals, and how long
ago; also of keys that are no longer kept, or it would never be noticed what should have been. An answer's worth is the best
ratio of chance to time over all horizons (the index of Gittins 1979; hit density, Beckmann, Chen and Cidon 2018, is
the same thought). So recency, frequency, resistance to scans and staying put in a loop are not rules here: each is what the rates say.

Pure: the time comes in. Used by `cache/response_cache`, and by `perf/eviction`, which compares it with other policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from control_plane.cache.domain.eviction.ghosts import SAMPLE as SAMPLE_FORGOTTEN
from control_plane.cache.domain.eviction.ghosts import Forgotten
from control_plane.cache.domain.eviction.reuse_rates import AGES, MOST_USES, ROWS, ReuseRates, row_of

ENTRY_BYTES = 576
"""What an entry takes beside its value: objects, numbers, its part of a dictionary at its emptiest. Measured: 395 to 520."""

_FORGOTTEN_PART = 64
"""One part in so many, on top, remembers keys that are no longer kept: 8 bytes each, four keys for an entry of 2 KB."""

_MOST_FORGOTTEN = 2**24
"""However much is kept: 128 MiB, which is made when a gateway starts."""

_SAMPLE = 16
"""Entries looked at for each put. The least worth of them are looked at again the next time, as many as that."""

_MOST_VICTIMS = 4
"""Of those looked at, before others are: one large answer may take the place of a thousand small ones."""

_LEARN_EVERY = 256
"""Uses, or an eighth of the entries if that is more: about 1 ms each time."""


@dataclass(slots=True, eq=False)
class Kept:
    """An entry; a handle to whoever asks for it."""

    key: bytes
    value: bytes
    expires_s: float
    held_bytes: int
    saving: float
    """By its bytes, when it is found."""
    last_use: int
    uses: int
    interval: int
    """Between its uses, the later ones counting more."""
    row: int
    place: int
    """Among all entries; -1 when it is gone."""


class KeptAnswers:
    """Values by key; what it evicts or does not admit is simply not there. Each operation is O(1), and a hit about 0.4 us.

    `held_bytes`, never more than `max_bytes`, is with what entries take beside their values. On top are a 64th of `max_bytes`, and
    128 MiB at most, for keys that are no longer kept, and 0.2 MB of rates.
    """

    def __init__(self, max_bytes: int, *, seed: int = 0) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.evicted = 0
        self._forgotten = Forgotten(min(max_bytes // _FORGOTTEN_PART // 8, _MOST_FORGOTTEN))
        self._rates = ReuseRates()
        self._seen, self._start, self._slope = self._rates.seen, self._rates.start, self._rates.slope
        self._kept: dict[bytes, Kept] = {}
        self._order: list[Kept] = []
        """In no order: to draw from."""
        self._least_worth: list[Kept] = []
        self._draw = Random(seed).random  # noqa: S311 - it guards nothing, and is to be the same each time
        self._uses = 0
        self._watched_at = 0
        self._learn_at = _LEARN_EVERY
        self._now_s = float("-inf")

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: bytes, now_s: float) -> bytes | None:
        """The value, if it is there and has not expired; counts as a use."""
        kept = self._kept.get(key)
        if kept is None or kept.expires_s <= now_s:
            self._now_s = now_s
            if kept is not None:
                self._remove(kept)
            return None
        self._use(kept)
        return kept.value

    def entry(self, key: bytes) -> Kept | None:
        """For `use_again`."""
        return self._kept.get(key)

    def use_again(self, kept: Kept, now_s: float) -> bool:
        """`get` for who has the entry: whether it is still there."""
        if kept.place < 0 or kept.expires_s <= now_s:
            return False
        self._use(kept)
        return True

    def _use(self, kept: Kept) -> None:
        self._uses = now = self._uses + 1
        age = now - kept.last_use
        self._seen[kept.row + age.bit_length()] += 1.0
        kept.last_use = now
        if kept.uses:
            kept.interval = interval = (kept.interval + age) >> 1
        else:
            kept.interval = interval = age
        if kept.uses < MOST_USES:
            kept.uses += 1
        kept.row = ROWS[kept.uses] + interval.bit_length() * AGES

    def put(self, key: bytes, value: bytes, *, cost_units: float, expires_s: float) -> None:
        """Offer it: `cost_units` is what it saves each time it is found. One of that key is replaced."""
        replaced = self._kept.get(key)
        if replaced is not None:
            self._remove(replaced)
        self._uses += 1
        held = len(value) + ENTRY_BYTES
        if held <= self.max_bytes:
            self._add(Kept(key, value, expires_s, held, cost_units / held, self._uses, *self._history(key), len(self._order)))
            self._make_room()
        if self._uses >= self._learn_at:
            self._rates.learn(self._uses)
            self._learn_at = self._uses + max(_LEARN_EVERY, len(self._kept) // 8)

    def _add(self, kept: Kept) -> None:
        self._kept[kept.key] = kept
        self._order.append(kept)
        self._least_worth.append(kept)
        self.held_bytes += kept.held_bytes

    def _remove(self, kept: Kept) -> None:
        del self._kept[kept.key]
        last = self._order.pop()
        if last is not kept:
            self._order[kept.place] = last
            last.place = kept.place
        kept.place = -1
        self.held_bytes -= kept.held_bytes
        self._forgotten.put(kept.key, kept.last_use, kept.uses, kept.interval)

    def _history(self, key: bytes) -> tuple[int, int, int]:
        """Uses, interval and row of what is asked for now and was not there."""
        found = self._forgotten.pop(key, self._uses)
        if found is None:
            return 0, 0, 0
        row, age, uses, interval = found
        self._seen[row + age.bit_length()] += 1.0
        interval = (interval + age) >> 1 if uses else age
        uses = min(uses + 1, MOST_USES)
        return uses, interval, row_of(uses, interval)

    def _make_room(self) -> None:
        drawn = self._watch()
        while self.held_bytes > self.max_bytes:
            candidates = dict.fromkeys(kept for kept in self._least_worth + (drawn or self._some()) if kept.place >= 0)
            self._least_worth = sorted(candidates, key=self._worth)[: 1 + _SAMPLE]
            for victim in self._least_worth[:_MOST_VICTIMS]:
                if self.held_bytes > self.max_bytes:
                    self._remove(victim)
                    self.evicted += 1
            drawn = []

    def _watch(self) -> list[Kept]:
        """Some entries: how long such as they are not used is the other half of their rate. So for some that are forgotten."""
        drawn, waited, now = self._some(), self._rates.waited, self._uses
        elapsed = now - self._watched_at
        self._watched_at = now
        each = elapsed * len(self._order) / _SAMPLE
        for kept in drawn:
            waited[kept.row + (now - kept.last_use).bit_length()] += each
        each = elapsed * len(self._forgotten) / SAMPLE_FORGOTTEN
        for row, age in self._forgotten.some(self._draw, now):
            waited[row + age.bit_length()] += each
        return drawn

    def _some(self) -> list[Kept]:
        order, draw = self._order, self._draw
        entries = len(order)
        return [order[int(draw() * entries)] for _ in range(_SAMPLE)]

    def _worth(self, kept: Kept) -> float:
        if kept.expires_s <= self._now_s:
            return -1.0
        age = self._uses - kept.last_use
        at = kept.row + (age * 2 // 3).bit_length()  # between the middles of two octaves
        return (self._start[at] + self._slope[at] * age) * kept.saving
