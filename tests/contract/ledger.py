"""Compares what a client sees of Triton with what it sees of the gateway, and keeps count of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from tests.contract.differences import DIFFERENCES

Seen = TypeVar("Seen")

_DELIBERATE = {name: (reason, gateway) for reason, cases in DIFFERENCES.items() for name, gateway in cases.items()}
compared: set[str] = set()
identical: set[str] = set()
different: Counter[str] = Counter()
"""Deliberate ones, by reason."""


def compare(name: str, straight: Seen, gateway: Seen, summary: Callable[[Seen], str]) -> None:
    """Hold one behaviour to its relation: the same, or different as `differences` says."""
    assert name not in compared, f"two cases are called {name!r}"
    compared.add(name)
    if name not in _DELIBERATE:
        assert gateway == straight, f"the gateway differs from Triton: {summary(straight)} -> {summary(gateway)}"
        identical.add(name)
        return
    reason, expected = _DELIBERATE[name]
    assert gateway != straight, f"no longer different, so take it out of differences.py: {reason}"
    assert summary(gateway) == expected, f"{summary(gateway)} instead of {expected}: {reason}"
    different[reason] += 1


def counted() -> dict[str, Any]:
    """What this process has compared, for another to `add`."""
    return {"compared": sorted(compared), "identical": sorted(identical), "different": dict(different)}


def add(others: dict[str, Any]) -> None:
    compared.update(others["compared"])
    identical.update(others["identical"])
    different.update(others["different"])


def lines() -> list[str]:
    """The count for the end of a session, with the reason of each deliberate difference."""
    total, deliberate = len(compared), different.total()
    wrong = total - len(identical) - deliberate
    head = f"{len(identical)} of {total} behaviours identical, {deliberate} deliberately different, {wrong} wrong"
    return [head, *(f"  {count:3} {reason}" for reason, count in different.most_common())]
