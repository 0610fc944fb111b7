"""Memory of a connection's last head, by which repeats are answered without being parsed."""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.protocols.head_template import Http1Template
from control_plane.protocols.http1 import HttpRequest
from control_plane.protocols.per_request import PerRequestFields

MAX_KNOWN_HEAD_BYTES = 2048
"""Largest head that a connection remembers or recognises; Triton's clients send about 250 bytes."""


@dataclass(slots=True)
class KnownHead:
    """The head of the connection's last request, for recognising its repeats.

    A client that keeps its connection mostly repeats its head byte for byte, and equal bytes mean the same:
    they need neither parsing nor deriving anything from them again.
    """

    head: bytes
    request_bytes: int
    """Size of head and body together; equal for all repeats, since Content-Length is a part of the head."""
    request: HttpRequest
    template: Http1Template | None = None
    """Recognises heads that differ in per-request fields and lengths only; made when it is first needed."""

    def make_template(self, per_request: PerRequestFields) -> Http1Template:
        """Make `template`, for heads that may differ in these fields."""
        self.template = Http1Template(self.head, per_request)
        return self.template
