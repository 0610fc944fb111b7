from __future__ import annotations

from copy import copy
from typing import Self


class FakeUnparsedRequest:
    """`inference/in_flight/unparsed_request.UnparsedRequest`: what can be seen of a request before it has been read."""

    seen_name = "m"
    seen_id = ""
    traceparents: tuple[bytes, ...] = ()
    slot: object = None

    def name_seen(self) -> str:
        return self.seen_name

    def header_id(self) -> str:
        return self.seen_id

    def body_bytes(self) -> int:
        return 0

    def field(self, name: str) -> str | None:
        return None

    def unit(self, call: object) -> tuple[bytes, ...]:
        return self.content(call)

    def content(self, call: object) -> tuple[bytes, ...]:
        return (str(id(self)).encode(),)

    def with_traceparent(self, value: bytes) -> Self:
        self.traceparents = (*self.traceparents, value)
        return copy(self)
