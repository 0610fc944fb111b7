"""Entries of the audit log, chained by hashes: each contains the hash of the one before it.

Whoever changes, drops or inserts an entry has to compute all later hashes anew, which anybody notices who has kept
one of them. Whoever cuts off the newest entries is noticed in the same way only: keep the last hash elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from control_plane.audit.domain.redaction import redacted, redacted_text
from control_plane.core.errors import InvalidRequest

MAX_REASON_CHARS = 500
FAILED = "failed"
"""Action of an entry that says that an earlier one's change was not made."""
_FIRST_HASH = "0" * 64


@dataclass(frozen=True, slots=True)
class Actor:
    """Author of a change, with the reason that was given."""

    who: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that is about to be made, without what must not be in a log; made by `change_of`."""

    who: str
    reason: str
    action: str
    """What is done: `create`, `replace`, `delete`, `load`, ...; `failed` for an earlier change that was not made."""
    kind: str
    name: str
    before: Mapping[str, Any] | None = None
    """The object as it was; None: there was none, or it is not an object that changes."""
    after: Mapping[str, Any] | None = None
    of: int = 0
    """For `failed`, the number of the entry whose change was not made."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry of the audit log."""

    number: int
    """From 1 on, without gaps."""
    at_s: float
    """Seconds since 1970."""
    change: Change
    hash: str
    """SHA-256 of the hash of the entry before it and of all of this one's other fields, in hexadecimal digits."""


def change_of(
    actor: Actor,
    action: str,
    kind: str,
    name: str,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    of: int = 0,
) -> Change:
    """Make a change for the log: secrets are taken out, and texts are cut to their bounds."""
    reason = redacted_text(actor.reason)[:MAX_REASON_CHARS]
    return Change(redacted_text(actor.who), reason, action, kind, redacted_text(name), redacted(before), redacted(after), of)


def sealed(last: Entry | None, change: Change, *, at_s: float) -> Entry:
    """Make the entry that follows `last`, None for the first."""
    entry = Entry(last.number + 1 if last is not None else 1, at_s, change, "")
    return replace(entry, hash=_hash(last.hash if last is not None else _FIRST_HASH, entry))


def verify(entries: Iterable[Entry], last: Entry | None = None) -> Entry | None:
    """Check that the entries follow each other, and `last`; return the newest. Raises InvalidRequest, which says
    where the chain is broken.
    """
    for entry in entries:
        number = last.number + 1 if last is not None else 1
        if entry.number != number:
            raise InvalidRequest(f"the audit log is not whole: entry {number} is missing, {entry.number} follows instead")
        if entry.hash != _hash(last.hash if last is not None else _FIRST_HASH, entry):
            raise InvalidRequest(f"the audit log is not as it was written: entry {number} has been changed, or one before it")
        last = entry
    return last


def to_json(entry: Entry) -> bytes:
    """Encode an entry, for stores and exports."""
    return orjson.dumps(asdict(entry), option=orjson.OPT_SORT_KEYS)


def from_json(text: str | bytes) -> Entry:
    """Decode an entry. Raises InvalidRequest."""
    try:
        return entry_from(orjson.loads(text))
    except (ValueError, TypeError, KeyError) as exc:
        raise InvalidRequest("an entry of the audit log cannot be read") from exc


def entry_from(fields: Mapping[str, Any]) -> Entry:
    """Make an entry of its fields. Raises TypeError, KeyError."""
    return Entry(fields["number"], fields["at_s"], Change(**fields["change"]), fields["hash"])


def _hash(before: str, entry: Entry) -> str:
    return hashlib.sha256(before.encode() + to_json(replace(entry, hash=""))).hexdigest()
