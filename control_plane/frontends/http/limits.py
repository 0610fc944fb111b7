"""Limits of HTTP/1.1 connections, and the refusals of what exceeds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from control_plane.core.errors import HeadTooLarge, PayloadTooLarge
from control_plane.frontends.common.connection_limits import ConnectionLimits

MAX_LINE_BYTES = 8000
"""Longest line of a head. Triton 24.10 closes the connection without an answer if a line is longer; a long
head of short lines is accepted."""

MAX_FIELDS = 100
"""Most fields of one head; Envoy's default. A field costs more than its bytes show."""


class StreamedBody(Enum):
    """Kind of a body that the application receives piece by piece; each kind has a limit of its own."""

    BODY = "body"
    """The body of an inference, which others send whole."""
    UPLOAD = "upload"
    """A form with a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits(ConnectionLimits):
    """Limits that an HTTP server sets for each connection: sizes, counts and time-outs."""

    max_body_bytes: int
    max_upload_bytes: int = 0
    """Largest file that the application receives piece by piece."""
    envelope_bytes: Callable[[bytes], int] = lambda target: 0
    """Says of a request's target how many bytes its body may have beyond `max_body_bytes`, for what is around another body."""

    def takes(self, target: bytes, size_bytes: int) -> bool:
        """Whether the body of a request with this target may have so many bytes."""
        return size_bytes <= self.max_body_bytes or size_bytes <= self.max_body_bytes + self.envelope_bytes(target)

    def head_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"the request head exceeds {self.max_header_bytes} bytes (TIDEGATE_MAX_HEADER_BYTES)")

    def body_too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the body exceeds the limit of {self.max_body_bytes} bytes (TIDEGATE_MAX_BODY_BYTES)")

    def upload_too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the body exceeds the limit of {self.max_upload_bytes} bytes (TIDEGATE_JOBS_MAX_UPLOAD_BYTES)")

    def check_streamed(self, kind: StreamedBody, size_bytes: int) -> None:
        """Check the size of a body that is received piece by piece. Raises PayloadTooLarge."""
        if kind is StreamedBody.UPLOAD and size_bytes > self.max_upload_bytes:
            raise self.upload_too_large()
        if kind is StreamedBody.BODY and size_bytes > self.max_body_bytes:
            raise self.body_too_large()


def line_too_long() -> HeadTooLarge:
    return HeadTooLarge(f"a line of the request head exceeds {MAX_LINE_BYTES} bytes, which Triton does not take")


def too_many_fields() -> HeadTooLarge:
    return HeadTooLarge(f"the request head has more than {MAX_FIELDS} fields")
