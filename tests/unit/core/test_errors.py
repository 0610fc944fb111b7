from __future__ import annotations

import re

import pytest

from control_plane.core import errors
from control_plane.core.errors import ControlPlaneError, ErrorCode


def concrete(root: type[ControlPlaneError] = ControlPlaneError) -> list[type[ControlPlaneError]]:
    """Return every subclass of the tree, at any depth; a subclass that a module makes for itself keeps its
    parent's code.
    """
    found = [each for each in root.__subclasses__() if each.__module__ == errors.__name__]
    return found + [below for each in found for below in concrete(each)]


def test_there_are_errors() -> None:
    assert len(concrete()) > 5


@pytest.mark.parametrize("error", concrete())
def test_each_has_a_code_of_its_own(error: type[ControlPlaneError]) -> None:
    assert isinstance(error.code, ErrorCode)
    assert [other for other in concrete() if other.code is error.code] == [error]


@pytest.mark.parametrize("code", ErrorCode)
def test_each_code_has_an_error(code: ErrorCode) -> None:
    assert any(error.code is code for error in concrete())


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r"^ {8}(\w+) {2,}\S", errors.__doc__, re.MULTILINE)
    assert drawn == [error.__name__ for error in concrete()]
