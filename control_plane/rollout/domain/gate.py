"""Gate: an anytime-valid test of whether a rate is higher with the canary than with stable in the same window.

Outcomes are counted in blocks of a second or less: samples and bad ones, of each arm. Counts of several processes are
added, and so are the logarithms of their evidence: each block is judged by itself, so that gateways of different speed
are never taken for versions of different speed. Given a block's samples and how many of them all were bad, those of
the canary are hypergeometric if both arms are alike, whatever the rate is at that moment. So nothing has to be known
of rates, which may change by the hour, nor of weights, which change with each step. The evidence is the likelihood
ratio of higher odds to equal ones, mixed over several odds ratios: an e-process. However often it is looked at, the
chance that it ever reaches 1/alpha though both arms are alike is alpha at most (Ville's inequality). Pure; called by
`evidence`, and by `perf/rollout_gates`.

Sources: Lindon and Malek, "Anytime-Valid Inference for Multinomial Count Data" (NeurIPS 2022), for the conditional
test; Ramdas et al., "Game-theoretic statistics and safe anytime-valid inference" (2023), for e-processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import comb, exp, inf, log, log1p

ODDS_RATIOS = (1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
"""Mixed in equal parts: small ones are found after many samples, large ones after few."""
BLOCK = 8
"""Samples of the smaller arm after which a block is closed; it is closed earlier where time has passed."""

_MOST_ALONE = 4_000
"""Samples of one arm that wait for one of the other. With more the block is begun anew: they are of another time, and the sum over
its outcomes has numbers of as many digits (a second for 200,000)."""
_LOG_ODDS = tuple(map(log, ODDS_RATIOS))


@dataclass(frozen=True, slots=True)
class GateSums:
    """Sums of the blocks that one process has judged: they only grow in number, and are added over processes."""

    canary: int = 0
    """Samples of the canary, and below how many of them were bad; the same of stable."""
    canary_bad: int = 0
    stable: int = 0
    stable_bad: int = 0
    log_ratios: tuple[float, ...] = (0.0,) * len(ODDS_RATIOS)
    """Logarithm of the likelihood ratio for each of `ODDS_RATIOS`."""


@dataclass(slots=True)
class Gate:
    """Sequential test of one kind of bad outcome."""

    canary: int = 0
    """Samples of the canary so far, and below how many of them were bad; the same of stable."""
    canary_bad: int = 0
    stable: int = 0
    stable_bad: int = 0
    log_ratios: list[float] = field(default_factory=lambda: [0.0] * len(ODDS_RATIOS))
    """Logarithm of the likelihood ratio for each of `ODDS_RATIOS`."""
    _open: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    """Counts of the block that is not closed yet."""

    def add(self, *, is_stable: bool, is_bad: bool) -> None:
        """Count a sample."""
        self._open[2 if is_stable else 0] += 1
        self._open[3 if is_stable else 1] += is_bad
        if self._open[0] >= BLOCK and self._open[2] >= BLOCK:
            self.close_block()
        elif self._open[0] >= _MOST_ALONE or self._open[2] >= _MOST_ALONE:
            self.close_block()
            self._open = [0, 0, 0, 0]

    def close_block(self) -> None:
        """Judge the samples since the last block, if there are any of both arms; to be called about once a second, and
        before the weights change."""
        canary, canary_bad, stable, stable_bad = self._open
        if canary and stable:
            self.add_block(canary, canary_bad, stable, stable_bad)
            self._open = [0, 0, 0, 0]

    def add_pair(self, *, canary_is_bad: bool, stable_is_bad: bool) -> None:
        """Judge what became of one request that both arms have computed: a block of its own, whose evidence is McNemar's
        test. That both are good, or both are bad, says nothing."""
        self.add_block(1, int(canary_is_bad), 1, int(stable_is_bad))

    def add_against(self, allowed: float, *, is_bad: bool) -> None:
        """Judge a sample of the canary against a rate that is allowed, and known: the likelihood ratio of higher odds than
        its. The samples need not be independent of each other: what must hold is that each is bad with that chance at most,
        whatever came before."""
        self.canary, self.canary_bad = self.canary + 1, self.canary_bad + is_bad
        for number, (ratio, log_odds) in enumerate(zip(ODDS_RATIOS, _LOG_ODDS, strict=True)):
            self.log_ratios[number] += is_bad * log_odds - log1p(allowed * (ratio - 1.0))

    def add_block(self, canary: int, canary_bad: int, stable: int, stable_bad: int) -> None:
        """Judge a block of samples."""
        self.canary, self.canary_bad = self.canary + canary, self.canary_bad + canary_bad
        self.stable, self.stable_bad = self.stable + stable, self.stable_bad + stable_bad
        bad = canary_bad + stable_bad
        if 0 < bad < canary + stable:
            expected = _log_normalisers(canary, stable, bad)
            for number, log_odds in enumerate(_LOG_ODDS):
                self.log_ratios[number] += canary_bad * log_odds - expected[number]

    @classmethod
    def of(cls, parts: Iterable[GateSums]) -> Gate:
        """Return the gate of several processes: all of their blocks are one sequence, whatever their order."""
        gate = cls()
        for part in parts:
            gate.canary, gate.canary_bad = gate.canary + part.canary, gate.canary_bad + part.canary_bad
            gate.stable, gate.stable_bad = gate.stable + part.stable, gate.stable_bad + part.stable_bad
            gate.log_ratios = [sum(each) for each in zip(gate.log_ratios, part.log_ratios, strict=True)]
        return gate

    @property
    def sums(self) -> GateSums:
        """The sums of the blocks that were judged."""
        return GateSums(self.canary, self.canary_bad, self.stable, self.stable_bad, tuple(self.log_ratios))

    @property
    def log_evidence(self) -> float:
        """Logarithm of the e-process: evidence of more bad outcomes with the canary."""
        return log_mean(self.log_ratios)

    @staticmethod
    def fails_at(alpha: float) -> float:
        """Logarithm of the evidence at which a gate fails, with a chance of `alpha` at most where both arms are alike."""
        return -log(alpha) if alpha > 0.0 else inf

    def has_failed(self, alpha: float) -> bool:
        """Whether the canary is worse, with a chance of `alpha` at most to say so of one that is not."""
        return self.log_evidence >= self.fails_at(alpha)


def log_mean(logs: Sequence[float]) -> float:
    """Return the logarithm of the mean of numbers that are given by their logarithms."""
    most = max(logs)
    return most + log(sum(exp(each - most) for each in logs) / len(logs))


@lru_cache(maxsize=50_000)
def _log_normalisers(canary: int, stable: int, bad: int) -> tuple[float, ...]:
    """Logarithms, by odds ratio, of its expected value to the power of the canary's bad samples if both arms are alike."""
    first, last = max(0, bad - stable), min(canary, bad)
    ways = [comb(canary, each) * comb(stable, bad - each) for each in range(first, last + 1)]
    total = sum(ways)
    parts = [way / total for way in ways]
    # The largest power is taken out of the sum, so that it cannot overflow.
    return tuple(
        last * log_odds + log(sum(part * exp((each - last) * log_odds) for each, part in enumerate(parts, first))) for log_odds in _LOG_ODDS
    )
