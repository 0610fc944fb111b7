"""Reads the caller's identity and timeout from the head of an HTTP request; shared by the KServe and OpenAI
frontends."""

from __future__ import annotations

from control_plane.auth.access import Access
from control_plane.core.errors import InvalidRequest
from control_plane.core.principal import ANONYMOUS, Identified, Principal
from control_plane.protocols.http1 import HttpRequest


def identify(access: Access, request: HttpRequest) -> Principal:
    """Authenticate the sender of a request. Raises Unauthenticated, LimitExceeded."""
    if not access.is_on:
        return ANONYMOUS
    # A connection mostly repeats its head, and an API key that was valid is so until an object changes or it expires.
    known = request.derived.caller
    if known is not None and access.still_holds(known):
        return known.principal
    generation = access.generation
    principal = access.identify(
        authorization=request.text_header(b"authorization"),
        api_key=request.text_header(b"x-api-key"),
        peer=request.peer,
        forwarded_for=request.text_header(b"x-forwarded-for"),
    )
    request.derived.caller = Identified(principal, generation) if principal.is_known else None
    return principal


def reauthenticate(access: Access, request: HttpRequest) -> Principal:
    """Authenticate the sender of a request again; a failure does not count as a guess. Raises Unauthenticated,
    LimitExceeded."""
    return access.reauthenticate(
        authorization=request.text_header(b"authorization"),
        api_key=request.text_header(b"x-api-key"),
        peer=request.peer,
        forwarded_for=request.text_header(b"x-forwarded-for"),
    )


TIMEOUT_FIELD = b"tidegate-timeout-ms"
_MAX_TIMEOUT_MS = 24 * 3600 * 1000


def timeout_s_of(http: HttpRequest) -> float | None:
    """What is left of the caller's timeout (`tidegate-timeout-ms`) in seconds; None where there is none.

    Raises InvalidRequest.
    """
    value = http.single_header(TIMEOUT_FIELD)
    if value is None:
        return None
    if not value.isdigit() or len(value) > len(str(_MAX_TIMEOUT_MS)) or not 0 < int(value) <= _MAX_TIMEOUT_MS:
        raise InvalidRequest(f"tidegate-timeout-ms must be a whole number of milliseconds up to a day, got {value.decode('latin-1')!r}")
    return max(0.0, int(value) / 1000 - http.waited_s)


def with_timeout(http: HttpRequest, timeout_s: float) -> HttpRequest:
    """Return a copy for another gateway, which gets `timeout_s` for it in place of the caller's timeout."""
    headers = [each for each in http.headers if each[0].lower() != TIMEOUT_FIELD]
    headers.append((TIMEOUT_FIELD, b"%d" % max(1, int(timeout_s * 1000))))
    return HttpRequest(http.method, http.target, headers, http.body)
