"""The `set` commands: create an object of the admin API or change it, and report each changed field.

Used by `tenants`, `routes` and `prices`. Without `--replace` only the fields that options name change
(PATCH); with it the object is replaced as a whole (PUT).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from types import MappingProxyType
from typing import Annotated, Any

import typer

from control_plane.admin.client import AdminClient
from control_plane.cli.common.printing import remark
from control_plane.core.errors import ControlPlaneError, ErrorCode, InvalidRequest

NONE = "none"
"""Value of an option that removes a limit, or another field that may be absent."""

ReplaceOption = Annotated[
    bool, typer.Option("--replace", help="Replace the object: fields that no option names get their defaults, instead of staying.")
]

Fields = Mapping[str, Any]


def number_or_none(text: str) -> float | str:
    """Parse an option that is a number, or `none` to remove the limit. Raises BadParameter."""
    return NONE if text.lower() == NONE else finite_number(text, expected=f"a number or `{NONE}`")


def finite_number(text: str, *, expected: str = "a number") -> float:
    """Parse an option that is a finite number. Raises BadParameter."""
    try:
        number = float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not {expected}") from None
    if not isfinite(number):
        raise typer.BadParameter(f"{text!r} is not a finite number")
    return number


def finite(number: float | None) -> float | None:
    """Callback of an option that is a number without bounds on both sides, which lets `inf` through. Raises BadParameter."""
    if number is not None and not isfinite(number):
        raise typer.BadParameter(f"{number:g} is not a finite number")
    return number


def percent(text: str, *, least: float = 0.0, most: float = 100.0, whole: str, expected: str) -> float:
    """Parse a percentage of an option, of which `whole` was given. Raises BadParameter."""
    try:
        number = float(text.strip().removesuffix("%"))
    except ValueError:
        number = -1.0
    if not least <= number <= most:
        raise typer.BadParameter(f"{whole!r} is not {expected}")
    return number


def limit_option(help_: str) -> Any:
    """Declare an option for a limit that may be absent; `none` removes it."""
    return typer.Option(parser=number_or_none, metavar=f"NUMBER|{NONE}", help=help_)


def number_option(help_: str, *, metavar: str = "NUMBER") -> Any:
    """Declare an option for a finite number that is always present."""
    return typer.Option(parser=finite_number, metavar=metavar, help=help_)


def given(**options: object) -> dict[str, Any]:
    """Return the options that were given, as fields of an admin API request: `none` becomes null, which
    removes a field.
    """
    return {field: None if value == NONE else value for field, value in options.items() if value is not None}


def set_object(
    client: AdminClient,
    kind: str,
    name: str,
    changes: Fields,
    *,
    replace: bool,
    needed: Mapping[str, str] = MappingProxyType({}),
    defaults_when_new: Fields = MappingProxyType({}),
) -> Any:
    """Create the object, or apply `changes` to it; return the new object and print what has changed.

    `needed` maps each field that a new object must have to the option that sets it; `defaults_when_new` are a new
    object's defaults. Raises InvalidRequest for a missing field, and the admin API's errors, such as a
    conflict if somebody else changed the object between the read and the write.
    """
    before = _read(client, kind, name)
    if before is None or replace:
        missing = [option for field, option in needed.items() if field not in changes]
        if missing:
            raise InvalidRequest(f"{'a new' if before is None else 'all of a'} {kind.removesuffix('s')} needs {' and '.join(missing)}")
        condition = {"If-None-Match": "*"} if before is None else _as_read(before)
        after = client.ask("PUT", kind, name, body={**defaults_when_new, **changes}, headers=condition)
    elif changes:
        after = client.ask("PATCH", kind, name, body=changes, headers=_as_read(before))
    else:
        after = before
    _tell(kind.removesuffix("s"), name, before, after)
    if after is not before:
        for warning in after.get("warnings", ()):
            remark(f"warning: {warning}")
    return after


def _read(client: AdminClient, kind: str, name: str) -> Fields | None:
    try:
        found: Fields = client.ask("GET", kind, name)
        return found
    except ControlPlaneError as exc:
        if exc.code is ErrorCode.OBJECT_NOT_FOUND:
            return None
        raise


def _as_read(before: Fields) -> dict[str, str]:
    """Make the write conditional on the version that was read (ETag): a concurrent change is not lost."""
    return {"If-Match": f'"{before["resource_version"]}"'}


def _tell(kind: str, name: str, before: Fields | None, after: Fields) -> None:
    if before is None:
        remark(f"{kind} {name} is new")
        return
    changed = list(differences(before, after))
    for field, old, new in changed:
        remark(f"{kind} {name}: {field} {text_of(old)} -> {text_of(new)}")
    if not changed:
        remark(f"{kind} {name} is as it was")


def differences(before: Fields, after: Fields, within: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each field that differs, by its path, with its values before and after."""
    for field, new in after.items():
        old = before.get(field)
        if isinstance(new, Mapping) and (old is None or isinstance(old, Mapping)):
            yield from differences(old or {}, new, f"{within}{field}.")
        elif old != new and field not in ("resource_version", "warnings"):
            yield within + field, old, new


def text_of(value: Any) -> str:
    """Render a field's value for people."""
    match value:
        case None:
            return NONE
        case bool():
            return "yes" if value else "no"
        case list():
            return ",".join(map(text_of, value)) or NONE
        case dict():
            return " ".join(f"{name}={text_of(each)}" for name, each in sorted(value.items()) if each not in (None, ""))
        case float():
            return f"{value:.10g}"
    return str(value) or NONE
