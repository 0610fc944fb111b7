from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.audit.domain.entry import MAX_REASON_CHARS, Actor, Entry, change_of, from_json, sealed, to_json, verify
from control_plane.core.errors import InvalidRequest


def log(count: int) -> list[Entry]:
    entries: list[Entry] = []
    for number in range(1, count + 1):
        change = change_of(
            Actor("me", "why"), "replace", "tenant", f"t{number}", before={"weight": 0.1}, after={"weight": number, "tags": ["a"]}
        )
        entries.append(sealed(entries[-1] if entries else None, change, at_s=1e9 + number / 3))
    return entries


def test_what_was_written_is_whole_also_by_pages_and_through_json() -> None:
    entries = log(5)
    assert [entry.number for entry in entries] == [1, 2, 3, 4, 5]
    read = [from_json(to_json(entry)) for entry in entries]
    assert read == entries
    assert verify(read) == entries[-1]
    assert verify(read[2:], verify(read[:2])) == entries[-1]
    assert verify([]) is None


def tampered(entries: list[Entry], place: int, what: str) -> list[Entry]:
    entry = entries[place]
    change = entry.change
    match what:
        case "dropped":
            return entries[:place] + entries[place + 1 :]
        case "who":
            change = replace(change, who="somebody else")
        case "after":
            change = replace(change, after={"weight": 99})
        case "when":
            entry = replace(entry, at_s=0.0)
        case "hash":
            entry = replace(entry, hash="0" * 64)
        case "exchanged":
            return [*entries[:place], entries[place + 1], entry, *entries[place + 2 :]]
        case "sealed anew":  # by one who cannot write the later ones
            return [
                *entries[:place],
                sealed(entries[place - 1] if place else None, replace(change, who="x"), at_s=1.0),
                *entries[place + 1 :],
            ]
    return [*entries[:place], replace(entry, change=change), *entries[place + 1 :]]


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("what", ["dropped", "who", "after", "when", "hash", "exchanged", "sealed anew"])
def test_whatever_is_changed_is_noticed(place: int, what: str) -> None:
    with pytest.raises(InvalidRequest, match="the audit log is not"):
        verify(tampered(log(5), place, what))


def test_a_reason_has_bounds() -> None:
    assert len(change_of(Actor("me", "x" * 10_000), "create", "tenant", "t").reason) == MAX_REASON_CHARS


def test_what_is_no_entry_is_refused() -> None:
    for text in ("", "[]", "{}", '{"number": 1, "at_s": 1, "change": {"x": 1}, "hash": ""}'):
        with pytest.raises(InvalidRequest):
            from_json(text)
