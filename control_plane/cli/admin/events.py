"""`tidegate events`: prints what happens on a running tidegate, over the admin API."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer

from control_plane.admin.client import AdminClient
from control_plane.cli.common.options import AdminUrlOption, StateDirOption, admin_client
from control_plane.cli.common.output import Shape, ShapeOption, as_yaml, print_found
from control_plane.cli.common.printing import print_table, printable, remark
from control_plane.core.errors import UpstreamUnavailable
from control_plane.events.domain.cloud_event import PREFIX
from control_plane.events.domain.stream import MEANINGS, Stream

_COLUMNS = ("at", "kind", "what")
_AGAIN_AFTER_S = 2.0
_BREAKS = frozenset(("gap", "dropped"))
"""Events of the stream itself: some that came before are missing, or the stream ends since it was read too slowly."""


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on, and print events as they happen, until interrupted.")] = False,
    stream: Annotated[
        Stream | None, typer.Option(help="Print the CloudEvents of a stream: " + "; ".join(f"{each}, {MEANINGS[each]}" for each in Stream))
    ] = None,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Print what has happened lately: loads, evictions, servers that come and go, steps of rollouts. With --stream what others
    subscribe to: usage, audit, requests.

    With --follow programs get a JSON object a line, or a YAML document for each event.
    """
    client = admin_client(state_dir, admin_url)
    row = _row if stream is None else _row_of_cloud_event
    if not follow:
        found = [each["data"] for each in client.events(follow=False, stream=stream or "") if each["event"] not in _BREAKS]
        print_found(found, output, lambda: print_table(_COLUMNS, map(row, found)))
        return
    try:
        for event in _followed(client, stream):
            typer.echo(_line(event, output, row))
    except KeyboardInterrupt:
        return


def _followed(client: AdminClient, stream: Stream | None) -> Iterator[Mapping[str, Any]]:
    """Yield the events of one stream after the other: each goes on where the one before broke off."""
    last, has_begun = "", False
    while True:
        try:
            for event in client.events(follow=True, after=last, stream=stream or "", backlog=stream is None):
                has_begun = True
                last = event.get("id", last)
                if event["event"] in _BREAKS:
                    remark(event["data"]["reason"])
                else:
                    yield event["data"]
        except UpstreamUnavailable as exc:
            if not has_begun and not last:
                raise
            remark(f"{exc}; asking again")
        time.sleep(_AGAIN_AFTER_S)


def _line(event: Mapping[str, Any], output: Shape, row: Callable[[Mapping[str, Any]], tuple[str, str, str]]) -> str:
    match output:
        case Shape.TABLE:
            return printable("  ".join(row(event)))
        case Shape.JSON:
            return json.dumps(event)
    return "---\n" + as_yaml(event).rstrip("\n")


def _row(event: Mapping[str, Any]) -> tuple[str, str, str]:
    return _told(event["at"], event["kind"], {name: value for name, value in event.items() if name not in ("at", "kind")})


def _row_of_cloud_event(event: Mapping[str, Any]) -> tuple[str, str, str]:
    return _told(event["time"], event["type"].removeprefix(PREFIX), event["data"])


def _told(at: str, kind: str, fields: Mapping[str, Any]) -> tuple[str, str, str]:
    told = (f"{name}={_short(value)}" for name, value in fields.items() if value not in ("", 0, 0.0, None))
    return at[:19].replace("T", " "), kind, " ".join(told)


def _short(value: object) -> object:
    return round(value, 3) if isinstance(value, float) else value
