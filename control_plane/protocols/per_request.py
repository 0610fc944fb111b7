"""What clients make anew for each request although no answer from the cache depends on it: trace context,
request ids, the time that is left.

The verbatim cache leaves it out of its keys. This module names those header fields and finds a request's id in
its body; `frontends/kserve/*_verbatim` work with it.

Sources: W3C Trace Context and Baggage; the propagation formats of OpenTelemetry's SDKs and of proxies; KServe v2
inference protocol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from control_plane.protocols.grpc import PREFIX_BYTES
from control_plane.protocols.header_forwarding import HeaderForwarding

PER_REQUEST_FIELDS = frozenset(
    (
        b"b3",
        b"baggage",
        b"grpc-timeout",
        b"grpc-trace-bin",
        b"sentry-trace",
        b"traceparent",
        b"tracestate",
        b"uber-trace-id",
        b"x-amzn-trace-id",
        b"x-b3-flags",
        b"x-b3-parentspanid",
        b"x-b3-sampled",
        b"x-b3-spanid",
        b"x-b3-traceid",
        b"x-cloud-trace-context",
        b"x-correlation-id",
        b"x-datadog-parent-id",
        b"x-datadog-sampling-priority",
        b"x-datadog-tags",
        b"x-datadog-trace-id",
        b"x-request-id",
    )
)
"""A hit waits for nothing, so it does not depend on `grpc-timeout` either."""

_JSON_ID = re.compile(rb'\s*\{\s*"id"\s*:\s*"([ !#-\[\]-~]{1,128})"')
"""An id that is the first member, of characters that JSON does not escape."""

_NAME_TAG, _VERSION_TAG, ID_TAG = (number << 3 | 2 for number in (1, 2, 3))
"""Tags of a ModelInferRequest's fields before its parameters and tensors."""

Span = tuple[int, int]

PerRequestFields = Mapping[bytes, re.Pattern[bytes]]
"""Lower-case names of fields that callers make anew, and which values of each may differ."""

NO_FIELDS: PerRequestFields = MappingProxyType({})

PLAIN = re.compile(rb"[ -~]*")
"""A value that no parser takes for anything else, nor refuses."""
_NOT_SAMPLED = re.compile(rb"(?! *[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf])[ -~]*")
"""A plain value, but for a `traceparent` whose caller records the trace."""


def per_request_fields(forwarding: HeaderForwarding, *, are_traced: bool = False) -> PerRequestFields:
    """Return the fields that callers make anew, without those on which answers may depend because models can see them. Where
    sampled requests `are_traced`, such a request has a head of its own, so that the ordinary path records it.
    """
    pattern = forwarding.pattern
    fields = {name: PLAIN for name in PER_REQUEST_FIELDS if pattern is None or pattern.search(name) is None}
    return {**fields, b"traceparent": _NOT_SAMPLED} if are_traced and b"traceparent" in fields else fields


def id_in_json(body: bytes) -> Span | None:
    """Where the id stands in the body of an HTTP request, if it is sure to be at its beginning."""
    found = _JSON_ID.match(body)
    return None if found is None else found.span(1)


def id_in_message(frame: bytes) -> Span | None:
    """Where the id (ASCII) stands in the frame of a ModelInferRequest, if it comes directly after the model's
    name and version, where all clients write it; a message may repeat it later."""
    try:
        at = _model_end(frame)
        # A frame whose first byte is set is compressed, and shows nothing.
        if frame[at] != ID_TAG or not 0 < frame[at + 1] <= 0x7F or frame[0]:
            return None
        start = at + 2
        end = start + frame[at + 1]
    except IndexError:
        return None
    return (start, end) if end <= len(frame) and frame[start:end].isascii() else None


def model_piece(frame: bytes) -> bytes:
    """The beginning of a ModelInferRequest's message in its frame that names the model and its version; empty where it does not."""
    try:
        end = _model_end(frame)
    except IndexError:
        return b""
    return b"" if frame[0] or end > len(frame) else frame[PREFIX_BYTES:end]


def names_model(piece: bytes, model_name: str) -> bool:
    """Whether a `model_piece` names exactly this model."""
    name = model_name.encode()
    return len(name) <= 0x7F and piece.startswith(bytes((_NAME_TAG, len(name))) + name)


def _model_end(frame: bytes) -> int:
    """Where the name and the version end with which the message begins. Raises IndexError."""
    at = PREFIX_BYTES
    for tag in (_NAME_TAG, _VERSION_TAG):
        # A length of more than one byte is not looked at; such a call is parsed.
        if frame[at] == tag and frame[at + 1] <= 0x7F:
            at += 2 + frame[at + 1]
    return at
