"""Descriptions of the admin API's objects in OpenAPI and in `tidegate schema`: the text under each field.

Pydantic's own `use_attribute_docstrings` reads the sources when a class is made, a tenth of a gateway's start; here they are read
when somebody asks for a schema.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class Described(BaseModel):
    """Object of the admin API whose fields are described by the docstrings below them, its own and its bases'."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        _describe(cls, schema, handler)
        return schema


class DescribedDataclass:
    """Annotation of a dataclass whose fields are described as those of `Described`, with those of the dataclasses in its fields."""

    def __init__(self, kind: type, **fields: type) -> None:
        self._kind, self._fields = kind, fields

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        _describe(self._kind, schema, handler)
        for name, kind in self._fields.items():
            _describe(kind, handler.resolve_ref_schema(schema)["properties"][name], handler)
        return schema


def _describe(kind: type, schema: JsonSchemaValue, handler: GetJsonSchemaHandler) -> None:
    properties = handler.resolve_ref_schema(schema).get("properties", {})
    for each in reversed(kind.__mro__):
        for name, text in _docstrings_in(each.__module__).get(each.__name__, {}).items():
            if name in properties:
                properties[name]["description"] = text


@cache
def _docstrings_in(module: str) -> Mapping[str, Mapping[str, str]]:
    """Docstrings of the fields of a module's classes, by class and field; none of other packages' modules."""
    if not module.startswith("control_plane."):
        return {}
    classes = [each for each in ast.parse(inspect.getsource(sys.modules[module])).body if isinstance(each, ast.ClassDef)]
    return {each.name: dict(_docstrings_of(each)) for each in classes}


def _docstrings_of(class_: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in zip(class_.body, class_.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
