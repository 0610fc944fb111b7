"""`tidegate audit`: shows, checks and exports the audit log, over the admin API.

The chain of hashes is computed here again, so that a gateway that was tampered with cannot say that all is well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from control_plane.audit.domain.entry import Entry, entry_from, to_json, verify
from control_plane.cli.common.changing import differences, text_of
from control_plane.cli.common.options import AdminUrlOption, StateDirOption, admin_client
from control_plane.cli.common.output import Shape, ShapeOption, print_found
from control_plane.cli.common.printing import moment, print_table, printable, remark
from control_plane.core.errors import InvalidRequest, UpstreamUnavailable

app = typer.Typer(help="Show, check and export who changed what, when and why.", no_args_is_help=True)

_PAGE = 100
_FOLLOW_EVERY_S = 1.0
_MAX_CELL_CHARS = 200

SinceOption = Annotated[int, typer.Option("--after", min=0, metavar="NUMBER", help="Begin after this entry. \\[at the first]")]


@app.command(name="list")
def list_entries(
    last: Annotated[int, typer.Option(min=1, help="How many of the newest entries.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", help="Go on, and print entries as they are written.")] = False,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """List the newest entries: when, who, what, and what was different before."""
    newest = _page(state_dir, admin_url, 0, limit=1)["newest"]
    found = list(_entries(state_dir, admin_url, max(0, newest - last)))
    columns = ("number", "when", "who", "action", "object", "change", "why")
    print_found([json.loads(to_json(entry)) for entry in found], output, lambda: print_table(columns, map(_row, found)))
    seen = found[-1].number if found else newest
    while follow:
        time.sleep(_FOLLOW_EVERY_S)
        for entry in _entries(state_dir, admin_url, seen):
            seen = entry.number
            line = to_json(entry).decode() if output is not Shape.TABLE else "  ".join(map(str, _row(entry)))
            typer.echo(line)


@app.command(name="verify")
def verify_log(
    head: Annotated[
        str | None, typer.Option(metavar="NUMBER:HASH", help="An entry's number and hash, kept from an earlier check: it must still be so.")
    ] = None,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Check that no entry was changed, dropped or inserted, and print the newest one's number and hash.

    Keep what it prints: with --head a later check also finds a log that was cut off, or written anew as a whole. A log in
    Redis may begin with a later entry than the first, which it says.
    """
    number, _, expected = (head or "").partition(":")
    if head is not None and not (number.isdecimal() and expected):
        raise InvalidRequest(f"--head {head!r} is not NUMBER:HASH, as this command prints it")
    first: int | None = None
    last: Entry | None = None
    for entry in _entries(state_dir, admin_url, 0):
        # A log in Redis keeps the newest entries: the hash that the oldest one continues is gone.
        last = entry if first is None and entry.number > 1 else verify([entry], last)
        first = first or entry.number
        if head is not None and entry.number == int(number) and entry.hash != expected:
            raise InvalidRequest(f"the audit log was written anew: entry {number} had the hash {expected}, and has {entry.hash}")
    count = last.number if last is not None else 0
    if head is not None and count < int(number):
        raise InvalidRequest(f"the audit log was cut off: it had entry {number}, and now ends with {count}")
    if head is not None and first is not None and int(number) < first:
        raise InvalidRequest(f"the audit log has no entry {number} any more: it begins with {first}; give a later one's hash")
    remark(
        f"{count} entries are as they were written"
        if first in (None, 1)
        else f"entries {first} to {count} are as they were written, those before are gone"
    )
    if last is not None:
        typer.echo(f"{last.number}:{last.hash}")


@app.command()
def export(after: SinceOption = 0, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """Print every entry with its hash as a line of JSON, oldest first."""
    for entry in _entries(state_dir, admin_url, after):
        typer.echo(to_json(entry).decode())


def _entries(state_dir: Any, admin_url: str | None, after: int) -> Iterator[Entry]:
    while found := _page(state_dir, admin_url, after, limit=_PAGE)["entries"]:
        for fields in found:
            try:
                entry = entry_from(fields)
            except (KeyError, TypeError) as exc:
                raise UpstreamUnavailable("the admin API answers with entries of another form: is it another version?") from exc
            if entry.number <= after:  # else a gateway that repeats itself is asked for ever
                raise InvalidRequest(f"the audit log is not as it was written: entry {entry.number} follows {after}")
            after = entry.number
            yield entry


def _page(state_dir: Any, admin_url: str | None, after: int, *, limit: int) -> Mapping[str, Any]:
    found: Mapping[str, Any] = admin_client(state_dir, admin_url).ask("GET", "audit", query={"after": str(after), "limit": str(limit)})
    return found


def _row(entry: Entry) -> tuple[object, ...]:
    change = entry.change
    named = f"{change.kind} {change.name}"
    return entry.number, moment(entry.at_s), change.who, change.action, named, printable(_summary_of(entry)), change.reason


def _summary_of(entry: Entry) -> str:
    """The fields that an entry's change changed; for `failed` which entry it is about, and why it failed."""
    change = entry.change
    if change.of:
        return f"change {change.of} was not made: {(change.after or {}).get('error', '')}"[:_MAX_CELL_CHARS]
    if change.before is None or change.after is None:
        return ""
    changes = ", ".join(f"{field} {text_of(old)} -> {text_of(new)}" for field, old, new in differences(change.before, change.after))
    return changes[:_MAX_CELL_CHARS]
