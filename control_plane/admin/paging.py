"""Pages of the admin API's lists: `limit` and `continue`, as Kubernetes names them.

A page begins after the key that the last one ended with, so that what is there all the time is in exactly one page, whatever
else comes and goes meanwhile. The gateways remember nothing: the token has the key, and any of them continues. It is in the header
`Tidegate-Continue`, and the next page's whole path in `Link` (RFC 8288).
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

from fastapi import Depends, Query, Request, Response
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from control_plane.admin.wire import CONTINUE
from control_plane.core.errors import InvalidRequest
from control_plane.objects.objects import Part

MAX_LIMIT = 1000
_MAX_TOKEN_CHARS = 4096

Key = str | int | tuple[str, ...]
ItemT = TypeVar("ItemT")
KeyT = TypeVar("KeyT")

Limit = Annotated[
    int | SkipJsonSchema[None], Field(ge=1, le=MAX_LIMIT, description="Most objects in the answer; not given: all that there are.")
]
Continue = Annotated[
    str,
    Field(
        max_length=_MAX_TOKEN_CHARS, description=f"The header `{CONTINUE}` of the page before, for the one after it; empty: the first page."
    ),
]


class Paging:
    """The page that one call asks for."""

    def __init__(self, request: Request, response: Response, limit: int | None, token: str) -> None:
        """Raises InvalidRequest: the token is not one of this list's."""
        self._request = request
        self._response = response
        self._limit = limit
        self._list = request.url.path
        self._after = _decoded(token, self._list) if token else None

    @property
    def limit(self) -> int | None:
        """Most objects in the answer; None: all."""
        return self._limit

    def after(self, kind: type[KeyT]) -> KeyT | None:
        """Return the key, of this kind, that the page before ended with; None: this is the first. Raises InvalidRequest."""
        if self._after is None or isinstance(self._after, kind):
            return self._after
        raise _foreign()

    @property
    def part(self) -> Part:
        """What is to be read for this page of a list of stored objects: one more than it has, by which `cut` sees that there is
        another one. Raises InvalidRequest.
        """
        return Part(self.after(str), None if self._limit is None else self._limit + 1)

    def page(self, items: Iterable[ItemT], key: Callable[[ItemT], str]) -> list[ItemT]:
        """Return this page of all the items, in the order of their unique keys. Raises InvalidRequest."""
        return self._page(items, key, self.after(str))

    def page_by_columns(self, items: Iterable[ItemT], key: Callable[[ItemT], tuple[str, ...]]) -> list[ItemT]:
        """Return this page of rows whose keys are several columns. Raises InvalidRequest."""
        return self._page(items, key, self.after(tuple))

    def _page(self, items: Iterable[ItemT], key: Callable[[ItemT], Any], after: Any) -> list[ItemT]:
        found = sorted(items, key=key)
        return self.cut(found if after is None else found[bisect_right(found, after, key=key) :], key)

    def cut(self, rest: list[ItemT], key: Callable[[ItemT], Key]) -> list[ItemT]:
        """Return this page of what comes after the page before, and tell the caller of the next one, if there is more."""
        if self._limit is None or len(rest) <= self._limit:
            return rest
        token = _encoded(key(rest[self._limit - 1]), self._list)
        others = [(name, value) for name, value in self._request.query_params.multi_items() if name != "continue"]
        self._response.headers[CONTINUE] = token
        path = self._request.scope["raw_path"].decode("latin-1") if "raw_path" in self._request.scope else self._list
        self._response.headers["Link"] = f'<{path}?{urlencode([*others, ("continue", token)])}>; rel="next"'
        return rest[: self._limit]


async def _paging(
    request: Request,
    response: Response,
    limit: Annotated[Limit, Query()] = None,
    continue_: Annotated[Continue, Query(alias="continue")] = "",
) -> Paging:
    return Paging(request, response, limit, continue_)


Paged = Annotated[Paging, Depends(_paging)]
"""The page, as a parameter of a handler that lists."""


def _encoded(key: Key, of: str) -> str:
    return urlsafe_b64encode(json.dumps([of, key], separators=(",", ":")).encode()).decode().rstrip("=")


def _decoded(token: str, of: str) -> Any:
    try:
        found = json.loads(urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except (ValueError, RecursionError):
        raise _foreign() from None
    match found:
        case [str() as list_, str() | int() as key] if list_ == of and not isinstance(key, bool):
            return key
        case [str() as list_, list() as keys] if list_ == of and all(isinstance(each, str) for each in keys):
            return tuple(keys)
    raise _foreign()


def _foreign() -> InvalidRequest:
    return InvalidRequest(f"continue: this is no token of this list; take the header {CONTINUE} of the page before, or leave it out")
