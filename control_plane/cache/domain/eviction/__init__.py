"""Eviction policy of level one of the response cache: which cached responses to keep in a bounded number of
bytes.

An entry's value is what it is expected to save per byte and unit of time: the cost of computing its response,
times how soon it is likely to be used again, divided by its size. The entries of least value are evicted,
found by sampling.

How soon is learned from the traffic, as a rate of reuse that depends on how often a key was used, at what
intervals, and how long ago (`reuse_rates`). Ghost entries (`ghosts`) remember the same of keys that were
evicted: without them the policy would never notice that it evicted the wrong ones. The expected saving is the
best ratio of hits to time over all horizons, which is the index of Gittins (1979); hit density (LHD:
Beckmann, Chen and Cidon, 2018) is the same idea. Recency, frequency, scan resistance and stability under
loops are therefore no rules of this policy: each follows from the learned rates.

Time is logical, counted in uses of any key; only expiry knows seconds, and callers pass those in. Pure: no
clock, no I/O. Used by `cache/response_cache`, and by `perf/eviction`, which compares it with other policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from control_plane.cache.domain.eviction.ghosts import SAMPLE as GHOST_SAMPLE
from control_plane.cache.domain.eviction.ghosts import GhostList
from control_plane.cache.domain.eviction.reuse_rates import AGES, MAX_USES, ROWS, ReuseRates, row_of

ENTRY_BYTES = 576
"""Bytes that an entry takes beside its value: objects, numbers, its share of a dictionary at its emptiest.
Measured: 395 to 520.
"""

_GHOST_PART = 64
"""Ghost entries get one byte, on top, for this many bytes of capacity: at 8 bytes each, four ghosts for each
entry of 2 KB.
"""

_MAX_GHOSTS = 2**24
"""Most ghost entries, however large the capacity: 128 MiB, which are allocated when a gateway starts."""

_WATCH_EVERY = 4
"""Uses between two samples for the learned rates, while no sample is needed to make room."""

_SAMPLE = 16
"""Entries sampled for each put. As many of the least valuable candidates stay in the sample of the next put,
which makes a small sample nearly as good as sorting all entries.
"""

_MAX_CANDIDATES = 4 * _SAMPLE
"""Candidates for eviction at most: while there is room, entries are added and none is evicted. Ordering all that
were added would hold up the loop for 50 ms when 256 MiB are first full of 2 KB."""

_MAX_VICTIMS = 4
"""Entries evicted from one sample before another is drawn: one large response may displace a thousand small
ones, and the later victims of a single sample would be ordinary entries.
"""

_LEARN_EVERY = 256
"""Uses between two updates of the learned rates, or an eighth of the entries if that is more. An update takes
about 1 ms.
"""


@dataclass(slots=True, eq=False)
class CacheEntry:
    """Cache entry with the statistics of its use; also the handle by which a caller uses the entry again
    without a lookup.
    """

    key: bytes
    value: bytes
    expires_s: float
    held_bytes: int
    saving: float
    """Cost units saved by a hit, per byte held."""
    last_use: int
    """Logical time of the last use."""
    uses: int
    """Hits so far, counted up to `MAX_USES`."""
    interval: int
    """Moving average of the logical time between two uses; the last interval weighs half."""
    row: int
    """Start of the learned rates of entries with such `uses` and `interval`; the octave of the age is added
    to it.
    """
    place: int
    """Index in the list of all entries; -1 after the entry was removed."""


class EvictingCache:
    """Cache bounded in bytes, with a learned eviction policy; an entry that is evicted or not admitted is
    simply a miss.

    Each operation is O(1), and a hit takes about 0.4 us. `held_bytes` includes each entry's overhead and
    never exceeds `max_bytes`. Ghost entries take a 64th of `max_bytes` on top (at most 128 MiB), and the
    learned rates 0.2 MB.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.evicted = 0
        self._ghosts = GhostList(min(max_bytes // _GHOST_PART // 8, _MAX_GHOSTS))
        self._rates = ReuseRates()
        # Aliases: `learn` writes to these very arrays, and a hit must not pay for another attribute.
        self._seen, self._start, self._slope = self._rates.seen, self._rates.start, self._rates.slope
        self._entries: dict[bytes, CacheEntry] = {}
        self._order: list[CacheEntry] = []
        """All entries in arbitrary order, to draw samples from in O(1)."""
        self._eviction_candidates: list[CacheEntry] = []
        """Candidates for eviction: the least valuable entries of the last sample, and those added since."""
        self._draw = Random(0).random  # noqa: S311 - it guards nothing, and equal calls are to evict equal entries
        self._uses = 0
        self._watched_at = 0
        self._learn_at = _LEARN_EVERY
        self._now_s = float("-inf")

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes, now_s: float) -> bytes | None:
        """Return the value of an entry that is there and has not expired, and count a use; None on a miss."""
        entry = self._entries.get(key)
        if entry is None or entry.expires_s <= now_s:
            self._now_s = now_s
            if entry is not None:
                self._remove(entry)
            return None
        self._use(entry)
        return entry.value

    def entry(self, key: bytes) -> CacheEntry | None:
        """Return the entry of `key` as a handle for `reuse`, without counting a use or looking at its
        expiry.
        """
        return self._entries.get(key)

    def reuse(self, entry: CacheEntry, now_s: float) -> bool:
        """Count another use of an entry, as `get` does without the lookup; False if it is gone or has
        expired.
        """
        if entry.place < 0 or entry.expires_s <= now_s:
            return False
        self._use(entry)
        return True

    def _use(self, entry: CacheEntry) -> None:
        """Count a hit: for the learned rates at the entry's present age, and in the entry's own
        statistics.
        """
        # Written out, without calls: this is most of what a hit costs.
        self._uses = now = self._uses + 1
        age = now - entry.last_use
        self._seen[entry.row + age.bit_length()] += 1.0
        entry.last_use = now
        if entry.uses:
            entry.interval = interval = (entry.interval + age) >> 1
        else:
            entry.interval = interval = age
        if entry.uses < MAX_USES:
            entry.uses += 1
        entry.row = ROWS[entry.uses] + interval.bit_length() * AGES

    def put(self, key: bytes, value: bytes, *, cost_units: float, expires_s: float) -> None:
        """Insert an entry, or replace the one of that key, and evict what no longer fits; the new entry may
        be evicted at once.

        `cost_units` is what each hit saves. A value that is larger than the whole cache is not stored.
        """
        replaced = self._entries.get(key)
        if replaced is not None:
            self._remove(replaced)
        self._uses += 1
        held = len(value) + ENTRY_BYTES
        if held <= self.max_bytes:
            self._add(CacheEntry(key, value, expires_s, held, cost_units / held, self._uses, *self._history(key), len(self._order)))
            self._make_room()
        if self._uses >= self._learn_at:
            self._rates.learn(self._uses)
            self._learn_at = self._uses + max(_LEARN_EVERY, len(self._entries) // 8)

    def _add(self, entry: CacheEntry) -> None:
        self._entries[entry.key] = entry
        self._order.append(entry)
        # A new entry is a candidate for eviction at once: a scan of keys that never come again displaces
        # itself, not others.
        self._eviction_candidates.append(entry)
        if len(self._eviction_candidates) > _MAX_CANDIDATES:
            del self._eviction_candidates[:-_SAMPLE]
        self.held_bytes += entry.held_bytes

    def _remove(self, entry: CacheEntry) -> None:
        """Drop an entry and leave a ghost entry of it."""
        del self._entries[entry.key]
        # The last entry takes the removed one's index, so that removal is O(1) and the list has no gaps.
        last = self._order.pop()
        if last is not entry:
            self._order[entry.place] = last
            last.place = entry.place
        entry.place = -1
        entry.value = b""  # the candidates for eviction, and callers' handles, still refer to the entry
        self.held_bytes -= entry.held_bytes
        self._ghosts.put(entry.key, entry.last_use, entry.uses, entry.interval)

    def _history(self, key: bytes) -> tuple[int, int, int]:
        """Return uses, interval and row for a new entry of `key`, from its ghost entry if there is one; zeros
        otherwise.
        """
        found = self._ghosts.pop(key, self._uses)
        if found is None:
            return 0, 0, 0
        row, age, uses, interval = found
        # A hit on a ghost: had the entry been kept, it would have been used now. The rates must learn that.
        self._seen[row + age.bit_length()] += 1.0
        interval = (interval + age) >> 1 if uses else age
        uses = min(uses + 1, MAX_USES)
        return uses, interval, row_of(uses, interval)

    def _make_room(self) -> None:
        """Evict the least valuable of sampled entries until the rest fits."""
        # The first sample serves both purposes; more are drawn only where that one was not enough.
        is_full = self.held_bytes > self.max_bytes
        drawn = self._watch() if is_full or self._uses - self._watched_at >= _WATCH_EVERY else []
        while self.held_bytes > self.max_bytes:
            candidates = dict.fromkeys(entry for entry in self._eviction_candidates + (drawn or self._some()) if entry.place >= 0)
            self._eviction_candidates = sorted(candidates, key=self._worth)[: 1 + _SAMPLE]
            for victim in self._eviction_candidates[:_MAX_VICTIMS]:
                if self.held_bytes > self.max_bytes:
                    self._remove(victim)
                    self.evicted += 1
            drawn = []

    def _watch(self) -> list[CacheEntry]:
        """Return a sample of entries, and count for the learned rates how long such entries and ghosts have
        waited unused.

        A rate is uses by time. Uses are counted as they happen; the time is estimated here, each sampled
        entry standing for its share of all entries since the last sample.
        """
        drawn, waited, now = self._some(), self._rates.waited, self._uses
        elapsed = now - self._watched_at
        self._watched_at = now
        each = elapsed * len(self._order) / _SAMPLE
        for entry in drawn:
            waited[entry.row + (now - entry.last_use).bit_length()] += each
        each = elapsed * len(self._ghosts) / GHOST_SAMPLE
        for row, age in self._ghosts.some(self._draw, now):
            waited[row + age.bit_length()] += each
        return drawn

    def _some(self) -> list[CacheEntry]:
        """Draw `_SAMPLE` entries at random, with repetition."""
        order, draw = self._order, self._draw
        entries = len(order)
        return [order[int(draw() * entries)] for _ in range(_SAMPLE)]

    def _worth(self, entry: CacheEntry) -> float:
        """Return the entry's expected saving per byte and unit of logical time; an expired entry has the
        least.
        """
        # `_now_s` is as of the last miss, which is as good: only puts, which follow misses, evict.
        if entry.expires_s <= self._now_s:
            return -1.0
        age = self._uses - entry.last_use
        # The index is interpolated between the middles of two octaves; times 2/3 maps the ages between these
        # to one octave.
        at = entry.row + (age * 2 // 3).bit_length()
        return (self._start[at] + self._slope[at] * age) * entry.saving
