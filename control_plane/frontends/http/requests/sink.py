"""Ports of the HTTP request reader: the connection that it reports to, and what it asks the application of a head."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Protocol

from control_plane.core.errors import ControlPlaneError
from control_plane.frontends.http.limits import StreamedBody
from control_plane.protocols.http1 import HttpRequest

Admit = Callable[[HttpRequest], None]
"""Checks a request by its head, before its body arrives, and a chunked one again, with what has come of its body, each time
that it has doubled. Raises the ControlPlaneError to refuse it with."""

Streams = Callable[[HttpRequest], StreamedBody | None]
"""Which kind of body the application receives piece by piece of such a request, by its head; None: the body is read
whole first."""


def streams_none(request: HttpRequest) -> StreamedBody | None:
    """Default `Streams`, for an application whose bodies are all read whole first."""
    return None


class RequestSink(Protocol):
    """Port of the reader to its connection."""

    verbatim_entries: Sized
    """What the verbatim cache has: while that is nothing, it need not be asked."""

    def answer_verbatim(self, head: bytes, body: bytes) -> bool:
        """Answer a repeat of an earlier request, given by its head's key (`Http1Template`) and its body, from the
        verbatim cache; False: it has to be parsed."""

    def accept(self, request: HttpRequest, *, keep_alive: bool) -> None:
        """Accept a whole request, or the head of one whose body is streamed."""

    def refuse(self, error: ControlPlaneError) -> None:
        """Answer with an error and close: the boundaries of requests are lost, so nothing after it can be
        parsed."""

    def reserve(self, size_bytes: int) -> None:
        """Reserve memory for so many bytes of a large body, which are about to arrive or have just
        arrived."""

    def read_on(self) -> None:
        """Go on reading: the buffer of a streamed body has room again."""
