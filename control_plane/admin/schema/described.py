"""Descriptions of the admin API's objects in OpenAPI and in `tidegate schema`: the text under each field.

They are read when somebody asks for a schema: reading them as the classes are made is a tenth of a gateway's start.
"""

from __future__ import annotations

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from control_plane.settings.docstrings import docstrings_of_fields


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
    for name, text in docstrings_of_fields(kind).items():
        if name in properties:
            properties[name]["description"] = text
