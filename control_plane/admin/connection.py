"""HTTP connection of the command line to a running `tidegate`: how its ports are reached, and what their answers say.

`admin/client` reaches the admin API by it, `cli/clients` the data port.
"""

from __future__ import annotations

import math
import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx

from control_plane.core.errors import ControlPlaneError, InvalidRequest, ObjectNotFound, UpstreamUnavailable
from control_plane.core.model import NAME_RULE

SILENCE_S = 45.0
"""Three heartbeats of a stream of events: with no more, the stream has broken off."""
IS_IT_RUNNING = "; is `tidegate serve` running there?"
"""Advice at the end of the errors of ports that do not answer."""
_LONGEST_PAUSE_S = 30.0
_SHOWABLE = re.compile("[!-~]+")
_WHERE_IN_REQUEST = re.compile(r"(?:(?<=; )|\A)(?:body|path|query)\.(?=[\w.]+: )")
"""Where the admin API found a wrong field; people at a command line have made no request."""
_NO_SUCH_PATH = "Not Found"
"""The answer of a data port to a path that it does not have."""
_REFUSALS: Mapping[int, type[ControlPlaneError]] = {404: ObjectNotFound, 503: UpstreamUnavailable}
"""Errors by the status of a gateway's refusal; for all other statuses it is InvalidRequest. A gateway says 503 while its store is
away, 504 of a load that takes too long."""
_PROXYS_REFUSALS: Mapping[int, type[ControlPlaneError]] = {**_REFUSALS, 502: UpstreamUnavailable, 504: UpstreamUnavailable}
"""Errors by the status of an answer that is no gateway's but a proxy's, which says 502, 503 or 504 while the gateway is away."""


def connected(url: str, timeout_s: float, headers: dict[str, str], verify: ssl.SSLContext | bool) -> httpx.Client:
    """Make the client of a port at `url`, which may be `unix:PATH`. Raises InvalidRequest."""
    path = url.removeprefix("unix:")
    is_unix = path != url
    if not is_unix and not url.startswith(("http://", "https://")):
        raise InvalidRequest(f"{url[:200]!r} is no URL to ask at: expected http://HOST:PORT, https://HOST:PORT or unix:PATH")
    return httpx.Client(
        base_url="http://localhost" if is_unix else url,
        transport=httpx.HTTPTransport(uds=path) if is_unix else None,
        verify=verify,
        trust_env=False,
        timeout=timeout_s,
        headers=headers,
    )


def trusted_at(url: str) -> ssl.SSLContext | bool:
    """Return what certificates are checked by: the system's authorities, or those in the file that SSL_CERT_FILE names (httpx's own
    default are those that it brings along); False where nothing is to be checked.
    """
    return ssl.create_default_context() if url.startswith("https:") else False


def authorization(api_key: str | None) -> dict[str, str]:
    """Make the Authorization header. The key is checked here: httpx's error for an invalid header would show
    all of it. Raises InvalidRequest.
    """
    shown = (api_key or "").strip()
    if not shown:
        return {}
    if not _SHOWABLE.fullmatch(shown):
        raise InvalidRequest("TIDEGATE_API_KEY has a character that cannot occur in an API key or token")
    return {"Authorization": f"Bearer {shown}"}


def path_of(segments: Iterable[str]) -> str:
    """Return a path of these segments, which may have any characters but `/`. Raises InvalidRequest."""
    segments = list(segments)
    for segment in segments:
        if segment in ("", ".", "..") or "/" in segment:  # would be another path
            raise InvalidRequest(f"{segment[:200]!r} is no name: a name is {NAME_RULE}")
    return "".join(f"/{quote(segment, safe='')}" for segment in segments)


def asked(url: str, send: Callable[[], httpx.Response], *, again_at: int | None = None, tries: float = math.inf) -> Any:
    """Return the content of an answer: JSON decoded, CSV as text, None where there is none.

    While the answer's status is `again_at`, `send` sends again, up to `tries` times in all, as far apart as the answer says.
    Raises what the answer refuses, UpstreamUnavailable: there is none.
    """
    return asked_with_headers(url, send, again_at=again_at, tries=tries)[0]


def asked_with_headers(
    url: str, send: Callable[[], httpx.Response], *, again_at: int | None = None, tries: float = math.inf
) -> tuple[Any, httpx.Headers]:
    """Return the content and the headers of an answer, as `asked` does."""
    try:
        response = send()
        while response.status_code == again_at and tries > 1:
            tries -= 1
            time.sleep(_pause_s(response))
            response = send()
        if response.is_success:
            return _content(response), response.headers
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
        raise UpstreamUnavailable(f"no answer from {url}: {exc}{IS_IT_RUNNING}") from exc
    raise refusal(response)


def _content(response: httpx.Response) -> Any:
    if response.status_code == httpx.codes.NO_CONTENT:
        return None
    return response.text if response.headers.get("content-type", "").startswith("text/csv") else response.json()


def _pause_s(refused: httpx.Response) -> float:
    """Return how long to wait until the next attempt: the seconds that the answer says; where it says none, or a date, one."""
    told = refused.headers.get("retry-after", "")
    return min(float(told), _LONGEST_PAUSE_S) if told.isascii() and told.isdecimal() else 1.0


@contextmanager
def streamed(
    client: httpx.Client, method: str, path: str, *, broken_off: str, advice: str = "", **options: Any
) -> Iterator[httpx.Response]:
    """Context manager: an answer that is read as it comes. Raises what the answer refuses, UpstreamUnavailable: it has not come,
    or not whole; `broken_off` and `advice` are the error's text, before and after its cause."""
    try:
        with client.stream(method, path, **options) as response:
            if not response.is_success:
                response.read()
                raise refusal(response)
            yield response
    except (httpx.HTTPError, ValueError) as exc:
        raise UpstreamUnavailable(f"{broken_off}: {exc}{advice}") from exc


def refusal(response: httpx.Response) -> ControlPlaneError:
    """Return the error that a refusal amounts to."""
    try:
        text, kinds = response.json()["error"] + "", _REFUSALS  # TypeError: it is no text
    except (ValueError, KeyError, TypeError):
        text, kinds = response.text, _PROXYS_REFUSALS
    if text == _NO_SUCH_PATH and not response.request.url.path.startswith("/v2/"):
        text = "there is no admin API at that address: give that of the admin port, which is port 8080 unless --admin-port says otherwise"
    advice = "; commands send the key in TIDEGATE_API_KEY" if response.status_code == httpx.codes.UNAUTHORIZED else ""
    text = _WHERE_IN_REQUEST.sub("", text)
    return kinds.get(response.status_code, InvalidRequest)(f"{text} (HTTP {response.status_code}){advice}")
