"""Output of commands as JSON or YAML, for programs and files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import typer


class Output(StrEnum):
    """Format of structured output."""

    YAML = "yaml"
    JSON = "json"


def print_documents(documents: Iterable[Mapping[str, Any]], output: Output, *, is_one: bool = False) -> None:
    """Print documents that `tidegate apply -f -` reads: YAML documents, or a JSON list of them; with `is_one`, the
    only one itself.
    """
    found = list(documents)
    if output is Output.YAML:
        typer.echo("---\n".join(map(as_yaml, found)), nl=False)
        return
    typer.echo(json.dumps(found[0] if is_one else found, indent=2))


def as_yaml(document: Mapping[str, Any]) -> str:
    """Render one document, its fields in the order that they have."""
    import yaml  # here: most commands need none of it

    return str(yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=100))
