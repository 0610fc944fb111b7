"""Writes the reference pages of the documents, each from what the program itself uses.

    python -m docs.generate          # or `make docs`, which also builds the site

`tests/unit/docs/test_generate.py` fails when a page that is committed is not what this would write.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_type_hints

import typer
import typer.main
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pydantic.fields import FieldInfo

from control_plane import settings
from control_plane.admin.api import make_admin_api
from control_plane.auth.domain.authorization import need_of_admin_call
from control_plane.cli import command_line
from control_plane.core import errors
from control_plane.core.algorithms.steps import finish
from control_plane.core.infer_call import CacheStatus, Frontend, Outcome
from control_plane.core.names import MAX_SIZE_BYTES
from control_plane.fleet.adapters.metrics import FleetMetrics
from control_plane.fleet.domain.counts import LOADING, FleetCounts
from control_plane.fleet.domain.fleet import Fleet, Server
from control_plane.fleet.domain.placement.placement import Obstacle
from control_plane.frontends.common.status import STATUS
from control_plane.models.domain.description import Tier
from control_plane.settings.fields import Group
from control_plane.telemetry.adapters.prometheus import OwnMetrics
from control_plane.telemetry.request_counts import (
    BUCKETS_S,
    CacheStatusCount,
    DurationHistogram,
    FleetRefusalCount,
    OutcomeCount,
    RequestCounts,
    ShedCount,
)
from control_plane.telemetry.shared_cache_counts import SharedCacheCounts
from control_plane.telemetry.shed_reason import ShedReason
from python_backends.batching import counts as batching

PROJECT = Path(__file__).resolve().parents[1]
REFERENCE = PROJECT / "docs" / "reference"
WRITTEN = "<!-- Written by docs/generate.py from the code; change it there, then `make docs`. -->"
_WIDTH = 108
_MIB = 2**20


def pages() -> dict[str, str]:
    """The text of each page by the name of its file."""
    written = {"settings": _settings(), "cli": _cli(), "metrics": _metrics(), "admin-api": _admin_api(), "errors": _errors()}
    return {f"{name}.md": "\n\n".join((WRITTEN, *blocks)) + "\n" for name, blocks in written.items()}


def main() -> None:
    """Write them."""
    for name, text in pages().items():
        (REFERENCE / name).write_text(text)


# Settings


def _settings() -> Iterator[str]:
    yield "# Settings"
    yield _wrapped(
        "Each is an environment variable. Those with an option are options of `tidegate serve` as well, which come before the variable. "
        "Unknown `TIDEGATE_` variables are errors. `tidegate config show` prints the values in force."
    )
    options = {parameter.name: parameter.opts[0] for parameter in _commands()["serve"].params}
    for group in get_type_hints(settings.Settings).values():
        yield f"## {_sentence(group)}"
        meanings = _field_docstrings(group)
        schemas = group.model_json_schema()["properties"]
        for name, field in group.model_fields.items():
            facts = [f"Default: {_default(field.get_default(call_default_factory=True))}", *_limits(field, schemas.get(name, {}))]
            facts += [f"option `{options[name]}`"] if name in options else []
            yield f"### `{settings.ENV_PREFIX}{name.upper()}`"
            yield _wrapped("; ".join(facts) + ".")
            yield _wrapped(meanings[name])


def _sentence(described: type) -> str:
    """The first sentence of its docstring, as a heading."""
    text = " ".join(inspect.getdoc(described).split())  # type: ignore[union-attr]
    return text.split(". ")[0].rstrip(".")


def _field_docstrings(group: type[Group]) -> dict[str, str]:
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(group))).body
    statements = cast("ast.ClassDef", found).body
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(statements)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


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
        case Path():
            return f"`{value.relative_to(PROJECT)}` in the project's folder" if value.is_relative_to(PROJECT) else f"`{value}`"
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


# The command line


def _cli() -> Iterator[str]:
    yield "# Command line"
    yield _wrapped("`tidegate COMMAND --help` says the same. Options in brackets have the default that stands there.")
    yield _wrapped(
        "Exit status: 0 it is done, or all is well; 1 it was refused or failed, or the answer is no (a rollout that was rolled back, a "
        "`diff` that is one, a model with mistakes, a machine that lacks something); 2 the command line is wrong, or `diff` cannot tell. "
        "Errors are on standard error, results on standard output."
    )
    yield _wrapped(
        "`-o json` and `-o yaml` print what the admin API has, with every field, for programs; tables are for people and change. "
        "`tidegate --install-completion` completes commands and options in bash, zsh and fish."
    )
    for name, command in sorted(_commands().items()):
        yield from _command(f"tidegate {name}", command)


def _commands() -> Mapping[str, Any]:
    group: Any = typer.main.get_command(command_line())
    return cast("Mapping[str, Any]", group.commands)


def _command(name: str, command: Any, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} `{name}`"
    yield _wrapped(_plain(command.help))
    for below, each in sorted(getattr(command, "commands", {}).items()):
        yield from _command(f"{name} {below}", each, level + 1)
    context = typer.Context(command)
    lines = [_parameter(each, context) for each in command.params if not each.hidden and each.name != "help"]
    if lines:
        yield "\n".join(lines)


def _parameter(each: Any, context: typer.Context) -> str:
    is_argument = each.param_type_name == "argument"
    shape = "" if is_argument or each.is_flag else f" {each.metavar or each.display_type(context)}"
    names = each.name.upper().rstrip("_") if is_argument else "/".join((*each.opts, *each.secondary_opts)) + shape
    notes = [word for word, holds in (("required", each.required), ("repeatable", each.multiple if not is_argument else False)) if holds]
    default = getattr(each, "default", None)
    if isinstance(default, str | int | float) and not isinstance(default, bool | Enum) and default != "":
        notes.append(f"default `{default}`")
    told = f" ({', '.join(notes)})" if notes else ""
    return _wrapped(f"* `{names}`{told}: {_plain(each.help)}", indent="  ")


def _plain(help_text: str | None) -> str:
    """Without the escapes of rich's markup."""
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(help_text or "")).replace("\\[", "[")
    return re.sub(r"(?<!`)<([A-Z]+)>", r"`<\1>`", text)


# Metrics


def _metrics() -> Iterator[str]:
    yield "# Metrics"
    yield _wrapped(
        "The metrics port shows these and then what Triton's own page has (`nv_*`). Labels with a fixed set of values list them. "
        "With several workers each counts for itself and the page shows the sum."
    )
    yield "## Gateway"
    yield _metric_list(_own_page())
    yield "## Fleet"
    yield _wrapped("Where there are several Tritons, or a memory budget. No label names a model, of which there may be thousands.")
    yield _metric_list(_fleet_page())
    yield "## Models that Tidegate ships"
    yield _wrapped("From their backends, on Triton's own page.")
    yield "\n".join(_metric(name, "counter", labels, meaning) for name, labels, meaning in _backend_rows())


def _own_page() -> str:
    frontends, name = [*Frontend], "any"
    counts = RequestCounts(
        ended=tuple(OutcomeCount(name, frontend, outcome, 1) for frontend, outcome in product(frontends, Outcome)),
        took=tuple(DurationHistogram(name, frontend, (0,) * (len(BUCKETS_S) + 1), 1.0) for frontend in frontends),
        shed=tuple(ShedCount(name, reason, 1) for reason in ShedReason),
        cached=tuple(CacheStatusCount(name, status, 1) for status in CacheStatus),
        shared_cache=SharedCacheCounts(),
    )
    own = OwnMetrics(
        version=name,
        counts=lambda: counts,
        workers=lambda: 1,
        triton_is_up=lambda: True,
        state_behind_s=lambda: 0.0,
        cache_bytes=1,
        max_models=10,
        fleet=FleetMetrics(FleetCounts()),
    )
    return finish(own.render()).decode()


def _fleet_page() -> str:
    fleet, counts = Fleet(), FleetCounts()
    fleet.add_server(Server("any", 1))
    counts.moved("any", source=Tier.COLD, target=Tier.WARM, size_bytes=1, took_s=1.0)
    requests = RequestCounts(refused=tuple(FleetRefusalCount(reason, 1) for reason in (LOADING, *(each.value for each in Obstacle))))
    registry = CollectorRegistry()
    registry.register(FleetMetrics(counts, lambda: requests, fleet=fleet, now_s=lambda: 0.0))
    page = generate_latest(registry).decode()
    return "\n".join(line for line in page.splitlines() if "tidegate_triton_losses" not in line) + "\n"


def _metric_list(page: str) -> str:
    entries = []
    for family in sorted(text_string_to_metric_families(page), key=lambda family: family.name):
        values: dict[str, dict[str, None]] = {}
        for sample in family.samples:
            for label, value in sample.labels.items():
                values.setdefault(label, {})[value] = None
        labels = "; ".join(_label(label, [*found]) for label, found in sorted(values.items()) if label != "le")
        suffix = "_total" if family.type == "counter" else ""
        entries.append(_metric(f"`{family.name}{suffix}`", family.type, labels, family.documentation))
    return "\n".join(entries)


def _metric(name: str, kind: str, labels: str, meaning: str) -> str:
    # A list, not a table: a row of a table cannot be wrapped, and the longest had 400 characters.
    entry = _wrapped(f"* {name}, {kind}: {meaning}", indent="  ")
    return entry + ("\n  " + _wrapped(f"Labels: {labels}.", indent="  ") if labels else "")


def _label(name: str, values: Sequence[str]) -> str:
    return f"`{name}`: {', '.join(f'`{value}`' for value in values)}" if len(values) > 1 else f"`{name}`"


def _backend_rows() -> Iterator[tuple[str, str, str]]:
    labels = "`model`, `version`, `variant`"
    for name, meaning in batching.COUNTERS.items():
        yield f"`tidegate_batching_{name}`", labels, f"{meaning}."
    constants = _constants(PROJECT / "python_backends" / "runtime" / "variants" / "served_variant.py")  # only Triton's stubs can import it
    yield f"`{constants['NAME']}`", f"{labels}, `reason`", f"{constants['DESCRIPTION']}."


def _constants(module: Path) -> dict[str, object]:
    statements = (each for each in ast.parse(module.read_text()).body if isinstance(each, ast.Assign))
    return {
        each.targets[0].id: each.value.value
        for each in statements  # type: ignore[attr-defined]
        if isinstance(each.value, ast.Constant) and isinstance(each.targets[0], ast.Name)
    }


# The admin API


def _admin_api() -> Iterator[str]:
    nothing = cast("Any", None)  # no service is asked for what OpenAPI tells
    parts = dict.fromkeys(
        ("models", "servers", "keys", "webhook_secrets", "objects", "purges", "usage", "known", "trail", "rollouts", "events", "records"),
        nothing,
    )
    api = make_admin_api(**parts, access=cast("Any", SimpleNamespace(is_on=True, generation=0)), version="any")
    document = api.openapi()
    yield "# Admin API"
    yield _wrapped(
        "The running server has the OpenAPI document of these calls at `/openapi.json`, and shows it at `/docs`. With authentication each "
        "call but health and version needs a key or token with the scope that is named; `operator` includes `viewer`, and `admin` all. "
        "Every refusal has the form "
        '`{"error": TEXT, "code": CODE, "retryable": BOOL}`, or with `Accept: application/problem+json` that of RFC 9457 with the same '
        "code; see [errors](errors.md)."
    )
    for tag in dict.fromkeys(operation["tags"][0] for operations in document["paths"].values() for operation in operations.values()):
        yield f"## {tag.capitalize()}"
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if operation["tags"][0] == tag:
                    yield from _operation(method.upper(), path, operation)
    yield "## Objects"
    for name, schema in document["components"]["schemas"].items():
        yield from _schema(name, schema)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    need = need_of_admin_call(method, path)
    yield f"### `{method} {path}`"
    if "description" in operation:
        yield _wrapped(operation["description"])
    facts = [f"* scope: {' or '.join(f'`{right}`' for right in (need.right, *need.also)) if need else 'none'}"]
    body = operation.get("requestBody")
    facts += [f"* body: {_type(body['content']['application/json']['schema'])}"] if body else []
    for each in operation.get("parameters", ()):
        if each["in"] != "path":
            told = f": {each['description']}" if "description" in each else ""
            facts.append(_wrapped(f"* {each['in']} `{each['name']}`{told}", indent="  "))
    facts.append(_wrapped(f"* answers: {', '.join(_answers(operation['responses']))}", indent="  "))
    yield "\n".join(facts)


def _answers(responses: Mapping[str, Any]) -> Iterator[str]:
    for status, response in sorted(responses.items()):
        schema = response.get("content", {}).get("application/json", {}).get("schema")
        yield f"`{status}` {_type(schema)}" if status.startswith("2") and schema else f"`{status}`"


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    if "description" in schema:
        yield _wrapped(schema["description"])
    required = schema.get("required", ())
    lines = []
    for field, of_field in schema.get("properties", {}).items():
        facts = [_type(of_field), *(["required"] if field in required else [])]
        told = f": {of_field['description']}" if "description" in of_field else ""
        lines.append(_wrapped(f"* `{field}` ({', '.join(facts)}){told}", indent="  "))
    if lines:
        yield "\n".join(lines)


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    return str(schema.get("type", "any"))


# Errors


def _errors() -> Iterator[str]:
    yield "# Errors"
    yield _wrapped(
        "What the gateway itself refuses or fails with. Where Triton has a status for the same mistake it is Triton's; what Triton answers "
        "passes through as it is. `code` is what the admin API tells; a retry of the same request may succeed where that is said."
    )
    meanings = dict(re.findall(r"^ {8}(\w+) {2,}(.+)$", errors.__doc__ or "", re.MULTILINE))
    kinds = {kind.code: meanings[kind.__name__] for kind in _subclasses(errors.ControlPlaneError)}
    rows = [
        (f"`{code.value}`", str(status.http), status.grpc.name, "yes" if status.retryable else "", kinds[code])
        for code, status in STATUS.items()
    ]
    yield _table(("code", "HTTP", "gRPC", "retry", "when"), rows)


def _subclasses(kind: type[errors.ControlPlaneError]) -> Iterator[type[errors.ControlPlaneError]]:
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each


# Markdown


def _wrapped(text: str, indent: str = "") -> str:
    paragraphs = re.split(r"\n\s*\n", text)
    fill = [
        textwrap.fill(" ".join(each.split()), _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        for each in paragraphs
    ]
    return "\n\n".join(fill)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
