from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel

from control_plane.admin.api import StoreHealthView
from control_plane.admin.paths.audit import AuditPageView
from control_plane.admin.schema.described import Described, DescribedDataclass
from control_plane.admin.schema.views import RouteView, TenantSpec


def described(schema: dict[str, dict[str, dict[str, str]]]) -> set[str]:
    return {name for name, field in schema["properties"].items() if "description" in field}


def test_the_text_under_a_field_is_its_description() -> None:
    schema = StoreHealthView.model_json_schema()
    assert schema["properties"]["behind_s"]["description"] == "Seconds since the state was last current; null: never."
    assert described(schema) == {"behind_s"}


def test_fields_of_a_base_have_theirs() -> None:
    assert {"resource_version", "model", "sticky"} <= described(RouteView.model_json_schema())


def test_a_dataclass_and_those_in_its_fields_have_theirs() -> None:
    definitions = AuditPageView.model_json_schema()["$defs"]
    assert {"number", "at_s", "hash"} <= described(definitions["Entry"])
    assert {"action", "before", "of"} <= described(definitions["Change"])


def test_another_packages_class_is_left_as_it_is() -> None:
    class Elsewhere(Described):
        field: int
        """Some text."""

    @dataclass
    class Value:
        field: int

    class Page(BaseModel):
        value: Annotated[Value, DescribedDataclass(Value)]

    assert described(Elsewhere.model_json_schema()) == described(Page.model_json_schema()["$defs"]["Value"]) == set()
    assert described(TenantSpec.model_json_schema())


def test_no_source_is_read_before_a_schema_is_asked_for() -> None:
    """It took a tenth of a gateway's start."""
    program = """
import linecache
from control_plane.admin.schema.views import TenantSpec
from control_plane.admin import api
def read(): return sorted(name.rpartition("/")[2] for name in linecache.cache if "/control_plane/admin/" in name)
print(read())
TenantSpec.model_json_schema()
print(read())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout == "[]\n['described.py', 'views.py']\n"
