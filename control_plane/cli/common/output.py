"""Output of commands: tables for people, JSON or YAML for programs and files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer


class Output(StrEnum):
    """Format of structured output."""

    YAML = "yaml"
    JSON = "json"


class Shape(StrEnum):
    """Shape of what a command prints."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


ShapeOption = Annotated[Shape, typer.Option("--output", "-o", help="table for people; json and yaml, with every field, for programs.")]


def print_found(found: Any, shape: Shape, as_table: Callable[[], object]) -> None:
    """Print what the admin API or a check has found: as it is for programs, as `as_table` prints it for people."""
    match shape:
        case Shape.TABLE:
            as_table()
        case Shape.JSON:
            typer.echo(json.dumps(found, indent=2))
        case Shape.YAML:
            typer.echo(as_yaml(found), nl=False)


def listed(found: Any) -> list[Any]:
    """Return the objects to show: a list as it is, one object as a list of one."""
    return found if isinstance(found, list) else [found]


def print_documents(documents: Iterable[Mapping[str, Any]], output: Output, *, is_one: bool = False) -> None:
    """Print documents that `tidegate apply -f -` reads: YAML documents, or a JSON list of them; with `is_one`, the
    only one itself.
    """
    found = list(documents)
    if output is Output.YAML:
        typer.echo("---\n".join(map(as_yaml, found)), nl=False)
        return
    typer.echo(json.dumps(found[0] if is_one else found, indent=2))


def as_yaml(document: Any) -> str:
    """Render one document, its fields in the order that they have."""
    import yaml  # here: most commands need none of it

    return str(
        yaml.safe_dump(dict(document) if isinstance(document, Mapping) else document, sort_keys=False, allow_unicode=True, width=100)
    )
