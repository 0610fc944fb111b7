"""Allow-list of the request header fields that are forwarded to Triton.

Fields that Triton itself reads are always forwarded; others only if their names match a pattern. Triton's own
options `--http-header-forward-pattern` and `--grpc-header-forward-pattern` then turn them into request
parameters, so answers may depend on them and they are part of the cache key. No answer can depend on a field
that Triton is not sent.

Source: Triton's "parameters" extension, header forwarding; RFC 9110, 7.6.1.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

BACKGROUND_FIELD = b"tidegate-background"
"""Name of `BACKGROUND_MARK`, which Triton is to hand on to models."""
BACKGROUND_MARK = (BACKGROUND_FIELD, secrets.token_hex(16).encode())
"""Field that marks a request that yields to callers', for models that can let it: no answer depends on it. Its value is
a secret of this process, so that no caller's field passes for it: others who ask the same would wait for what yields."""

TIME_LEFT_FIELD = b"tidegate-time-left-ms"
"""Field that tells a model how many milliseconds are left until the deadline of its request: no answer depends on it."""

HOP_FIELD = b"tidegate-hop"
"""Field that names the region which sends a request on. Whoever forges it gains nothing: such a request stays where it came, and is
computed there only while there is idle room."""

_READ_BY_TRITON = frozenset(
    (
        b"accept",
        b"accept-encoding",
        b"content-encoding",
        b"content-type",
        b"endpoint-load-metrics-format",
        b"grpc-accept-encoding",
        b"grpc-encoding",
        b"grpc-trace-bin",
        b"inference-header-content-length",
        b"traceparent",
        b"tracestate",
        b"x-request-id",
    )
)
"""The answer's tensors do not depend on these: they describe framing, or identify requests."""

_RESTRICTED = b"triton-grpc-protocol-"
"""Prefix of the fields by which a caller unlocks a restricted protocol of an external Triton."""

_NEVER = frozenset(
    (
        b"authorization",  # a caller's credentials are for the gateway, not for models
        b"connection",
        b"content-length",
        b"cookie",
        b"expect",
        b"host",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"set-cookie",
        b"te",
        b"tidegate-control",  # the gateway's own, as the next
        HOP_FIELD,
        b"tidegate-cost-budget-units",
        b"tidegate-latency-budget-ms",
        b"tidegate-target",
        TIME_LEFT_FIELD,
        b"tidegate-timing",  # no answer's tensors depend on it: who asks for times is to find what others find in the cache
        b"trailer",
        b"transfer-encoding",
        b"triton-grpc-protocol-tidegate-control",
        b"triton_grpc_error",  # crashes Triton 24.10 on streams, where `frontends/kserve/grpc_stream` does it, and does nothing elsewhere
        b"upgrade",
        b"x-api-key",
    )
)
"""Never forwarded, whatever the pattern: fields of one connection, secrets, and what the gateway does itself."""

_RESERVED = frozenset((b"sequence_id", b"sequence_start", b"sequence_end", b"priority", b"timeout", b"headers", b"binary_data_output"))
_RESERVED_PREFIX = b"triton_"
"""Names of Triton's own parameters: a field of such a name would set one past the gateway's checks, and from 26.05 on Triton
refuses the request (kReservedParameterKeys in its `src/common.h`). Browsers send `priority` (RFC 9218)."""

_READ_BY_GATEWAYS = frozenset(
    (
        b"authorization",
        b"cache-control",
        b"tidegate-cost-budget-units",
        b"tidegate-latency-budget-ms",
        b"tidegate-target",
        b"tidegate-timeout-ms",
        b"x-api-key",
    )
)
"""What else the gateway of another region reads of a request that is sent on to it, its caller's credentials among it."""

_BINARY = b"-bin"
"""Ending of the names of gRPC's binary metadata, whose values Triton's gRPC decodes from base64: they are no text."""

_MAX_NAME_BYTES = 256
_BREAKS_A_LINE = re.compile(rb"[\r\n\0]")


@dataclass(frozen=True, slots=True)
class HeaderForwarding:
    """Allow-list of header fields; `pattern` may match anywhere in a name and ignores case, as Triton's with
    `(?i)`."""

    pattern: re.Pattern[bytes] | None = None

    @classmethod
    def of(cls, pattern: str) -> HeaderForwarding:
        """Compile `pattern`; an empty one matches no field."""
        return cls(re.compile(pattern.encode(), re.IGNORECASE) if pattern else None)

    def passes(self, name: bytes, value: bytes) -> bool:
        """Whether the field is forwarded; `name` is in lower case."""
        if name in _NEVER or not _is_text(value):
            return False
        if name == BACKGROUND_FIELD:
            return value == BACKGROUND_MARK[1]
        return name in _READ_BY_TRITON or name.startswith(_RESTRICTED) or self._matches(name, value)

    def matched(self, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The fields that the pattern forwards, in order, encoded unambiguously for a cache key; empty if
        there are none."""
        if self.pattern is None:
            return b""
        return _joined(field for field in fields if field[0].lower() not in _NEVER and self._matches(field[0].lower(), field[1]))

    def _matches(self, name: bytes, value: bytes) -> bool:
        pattern = self.pattern
        is_one = pattern is not None and name != BACKGROUND_FIELD and len(name) <= _MAX_NAME_BYTES and pattern.search(name) is not None
        if not is_one or name in _RESERVED or name.startswith(_RESERVED_PREFIX) or name.endswith(_BINARY):
            return False
        return _BREAKS_A_LINE.search(value) is None and _is_text(value)


@dataclass(frozen=True, slots=True)
class GatewayForwarding(HeaderForwarding):
    """Allow-list of what another region's gateway is sent: what Triton would be sent here, and what gateways read."""

    def passes(self, name: bytes, value: bytes) -> bool:
        """See `HeaderForwarding.passes`."""
        if name in _READ_BY_GATEWAYS:
            return True
        # Without `super()`, which finds no class in one that is made anew for its slots.
        return name != BACKGROUND_FIELD and HeaderForwarding.passes(self, name, value)


def _is_text(value: bytes) -> bool:
    """Whether a value is UTF-8: Python models cannot read the parameters of a request with another, and fail with all of its batch."""
    if value.isascii():
        return True
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def unlocking(metadata: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The fields of a gRPC call that unlock restricted protocols, in order, encoded unambiguously for a cache key: who has
    no such key gets no answer of who has. Empty if there are none."""
    found = [field for field in metadata if field[0].startswith(_RESTRICTED)]
    return _joined(found) if found else b""


def time_left_value(left_s: float) -> bytes:
    """The value of `TIME_LEFT_FIELD`, rounded up: by a model's clock a request ends no sooner than by the gateway's."""
    return b"%d" % max(1, ceil(left_s * 1000))


def _joined(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%d:%b%d:%b" % (len(name), name, len(value), value) for name, value in fields)


NO_FORWARDING = HeaderForwarding()
