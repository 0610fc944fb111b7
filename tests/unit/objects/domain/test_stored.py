from __future__ import annotations

import pytest

from control_plane.core.errors import Conflict, StoreUnavailable
from control_plane.objects.domain.stored import Kind, check_expected, check_not_older


@pytest.mark.parametrize(("expected", "current"), [(None, 0), (None, 7), (0, 0), (7, 7)])
def test_a_write_that_may_go_ahead(expected: int | None, current: int) -> None:
    check_expected(Kind.ROUTE, "a", expected=expected, current=current)


@pytest.mark.parametrize(
    ("expected", "current", "says"),
    [
        (0, 7, "route 'a' exists already, with resource_version 7"),
        (6, 7, "was to have resource_version 6, and it has 7: it has been changed meanwhile; read it again"),
        (8, 7, "was to have resource_version 8, and it has 7"),
        (7, 0, "was to have resource_version 7, and there is none of that name"),
    ],
)
def test_a_write_that_may_not(expected: int, current: int, says: str) -> None:
    with pytest.raises(Conflict, match=says):
        check_expected(Kind.ROUTE, "a", expected=expected, current=current)


@pytest.mark.parametrize(("since", "last"), [(0, 0), (0, 5), (4, 5), (5, 5)])
def test_a_store_may_be_as_new_as_what_was_read_from_it(since: int, last: int) -> None:
    check_not_older(since=since, last=last)


@pytest.mark.parametrize(("since", "last"), [(1, 0), (6, 5)])
def test_a_store_may_not_be_older(since: int, last: int) -> None:
    with pytest.raises(StoreUnavailable, match=f"last change is {last}, and {since} was read"):
        check_not_older(since=since, last=last)
