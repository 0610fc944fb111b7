"""The reference's page of the admin API: its calls by tag, and its objects, from the API's own OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

from control_plane.admin.api import make_admin_api
from control_plane.admin.services import AdminServices
from control_plane.auth.domain.authorization import need_of_admin_call
from docs.generator.markdown import wrapped


def blocks() -> Iterator[str]:
    nothing = dict.fromkeys((each.name for each in fields(AdminServices)), cast("Any", None))  # OpenAPI asks no service
    access = cast("Any", SimpleNamespace(is_on=True, generation=0))
    api = make_admin_api(AdminServices(**nothing | {"access": access}), version="any")
    document = api.openapi()
    yield "# Admin API"
    yield wrapped(
        "The running server has the OpenAPI document of these calls at `/openapi.json`. With authentication each "
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
        yield wrapped(operation["description"])
    facts = [f"* scope: {' or '.join(f'`{right}`' for right in (need.right, *need.also)) if need else 'none'}"]
    body = operation.get("requestBody")
    facts += [f"* body: {_type(body['content']['application/json']['schema'])}"] if body else []
    for each in operation.get("parameters", ()):
        if each["in"] != "path":
            told = f": {each['description']}" if "description" in each else ""
            facts.append(wrapped(f"* {each['in']} `{each['name']}`{told}", indent="  "))
    facts.append(wrapped(f"* answers: {', '.join(_answers(operation['responses']))}", indent="  "))
    yield "\n".join(facts)


def _answers(responses: Mapping[str, Any]) -> Iterator[str]:
    for status, response in sorted(responses.items()):
        schema = response.get("content", {}).get("application/json", {}).get("schema")
        yield f"`{status}` {_type(schema)}" if status.startswith("2") and schema else f"`{status}`"


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    if "description" in schema:
        yield wrapped(schema["description"])
    required = schema.get("required", ())
    lines = []
    for field, of_field in schema.get("properties", {}).items():
        facts = [_type(of_field), *(["required"] if field in required else [])]
        told = f": {of_field['description']}" if "description" in of_field else ""
        lines.append(wrapped(f"* `{field}` ({', '.join(facts)}){told}", indent="  "))
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
