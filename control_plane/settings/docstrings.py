"""Texts under the fields of classes, which describe them in help, references and schemas; read from the sources when somebody asks.

Pydantic's own `use_attribute_docstrings` reads them when a class is made, in each process at its start. Used by `settings` and by
`admin/schema/described`.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache


def docstrings_of_fields(kind: type) -> dict[str, str]:
    """Return the text under each field of a class of ours and of its bases, a subclass's instead of its base's."""
    return {name: text for each in reversed(kind.__mro__) for name, text in _docstrings_in(each.__module__).get(each.__name__, {}).items()}


@cache
def _docstrings_in(module: str) -> Mapping[str, Mapping[str, str]]:
    """Docstrings of the fields of a module's classes, by class and field; none of other packages' modules."""
    if not module.startswith("control_plane."):
        return {}
    classes = [each for each in ast.parse(inspect.getsource(sys.modules[module])).body if isinstance(each, ast.ClassDef)]
    return {each.name: dict(_docstrings_below(each)) for each in classes}


def _docstrings_below(class_: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in zip(class_.body, class_.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
