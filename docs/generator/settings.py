"""The reference's page of settings: every variable with its default, its limits, its option and its meaning."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, get_type_hints

from pydantic.fields import FieldInfo

from control_plane import settings
from control_plane.core.names import MAX_SIZE_BYTES
from control_plane.settings.docstrings import docstrings_of_fields
from docs.generator.cli import commands
from docs.generator.markdown import wrapped

_MIB = 2**20


def blocks() -> Iterator[str]:
    yield "# Settings"
    yield wrapped(
        "Each is an environment variable. Those with an option are options of `tidegate serve` as well, which come before the variable. "
        "Unknown `TIDEGATE_` variables are errors. `tidegate config show` prints the values in force."
    )
    options = {parameter.name: parameter.opts[0] for parameter in commands()["serve"].params}
    for group in get_type_hints(settings.Settings).values():
        yield f"## {_sentence(group)}"
        meanings = docstrings_of_fields(group)
        schemas = group.model_json_schema()["properties"]
        for name, field in group.model_fields.items():
            facts = [f"Default: {_default(field.get_default(call_default_factory=True))}", *_limits(field, schemas.get(name, {}))]
            facts += [f"option `{options[name]}`"] if name in options else []
            yield f"### `{settings.ENV_PREFIX}{name.upper()}`"
            yield wrapped("; ".join(facts) + ".")
            yield wrapped(meanings[name])


def _sentence(described: type) -> str:
    """The first sentence of its docstring, as a heading."""
    text = " ".join(inspect.getdoc(described).split())  # type: ignore[union-attr]
    return text.split(". ")[0].rstrip(".")


def _default(value: object) -> str:
    match value:
        case None | "" | () | [] | {}:
            return "not given"
        case bool():
            return f"`{str(value).lower()}`"
        case int() if value >= _MIB and value % _MIB == 0:
            return f"`{int(value)}` ({value // _MIB:,} MiB)"
        case list() | tuple():
            return ", ".join(_default(each) for each in value)
        case Path() if value.is_relative_to(settings.PROJECT_ROOT):
            return f"`{value.relative_to(settings.PROJECT_ROOT)}` in the project's folder"
        case _:
            return f"`{value}`"


def _limits(field: FieldInfo, schema: Mapping[str, Any]) -> Iterator[str]:
    """What a value may be, in words: by the field's own bounds, which come before its type's, and by JSON Schema."""
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    bounds: dict[str, Any] = {}
    for constraint, key in product(field.metadata, words):
        if (bound := getattr(constraint, key, None)) is not None:
            bounds.setdefault(key, bound)
    if "ge" in bounds:
        bounds.pop("gt", None)
    yield from (f"{words[key]} `{bound}`" for key, bound in bounds.items() if bound != MAX_SIZE_BYTES)
    for part in (schema, *schema.get("anyOf", ())):
        if "enum" in part:
            yield "one of " + ", ".join(f"`{each}`" for each in part["enum"])
