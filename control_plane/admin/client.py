"""Client of a running `tidegate`'s admin API, for the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx

from control_plane.admin.connection import SILENCE_S, asked, asked_with_headers, authorization, connected, path_of, streamed, trusted_at
from control_plane.admin.events.lines import parsed_events
from control_plane.admin.wire import CONTINUE

_LOAD_TIMEOUT_S = 600.0  # above the gateway's own deadline of a load, whose error is more to the point than a timeout here
_PAGE = 500
"""Objects of a list that one answer has."""


class AdminClient:
    """Client of the admin API.

    Every method raises UpstreamUnavailable if nobody answers, or says that somebody is away, and InvalidRequest or
    ObjectNotFound if the API refuses.
    """

    def __init__(self, url: str, api_key: str | None = None, *, reason: str = "", timeout_s: float = _LOAD_TIMEOUT_S) -> None:
        """`url` may be `unix:PATH`; `api_key` is a key or a token; `reason` is for the audit log. Raises InvalidRequest if it can be
        neither.
        """
        self._url = url
        self._timeout_s = timeout_s
        self._headers = authorization(api_key) | ({"x-tidegate-reason": quote(reason, safe=" ")} if reason else {})
        self._verify = trusted_at(url)

    def list_models(self) -> list[dict[str, Any]]:
        return self.ask_all("models")

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET", "models", name)
        return found

    def load(self, name: str, *, everywhere: bool = False) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("POST", "models", name, "load", query={"everywhere": "true"} if everywhere else None)
        return found

    def unload(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("POST", "models", name, "unload")
        return found

    def release(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("POST", "models", name, "release")
        return found

    def ask(
        self,
        method: str,
        *segments: str,
        body: Mapping[str, object] | None = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        tries: int = 1,
    ) -> Any:
        """Make any call, by the segments of its path; return its JSON decoded, its CSV as text, or None
        without content. A call that may be repeated is made up to `tries` times while the answer is 503, as far apart as that says.
        """
        path = path_of(segments)
        with connected(self._url, self._timeout_s, self._headers, self._verify) as client:
            return asked(
                self._url,
                lambda: client.request(method, path, json=body, params=query, headers=headers),
                again_at=httpx.codes.SERVICE_UNAVAILABLE,
                tries=tries,
            )

    def ask_all(self, *segments: str) -> list[dict[str, Any]]:
        """Read a list, by the segments of its path, page by page."""
        path, query = path_of(segments), {"limit": str(_PAGE)}
        found: list[dict[str, Any]] = []
        with connected(self._url, self._timeout_s, self._headers, self._verify) as client:
            while True:
                page, headers = asked_with_headers(self._url, partial(client.get, path, params=query))
                found += page
                token = headers.get(CONTINUE, "")
                if not token:
                    return found
                query = {**query, "continue": token}

    def events(self, *, follow: bool, after: str = "", stream: str = "", backlog: bool = True) -> Iterator[dict[str, Any]]:
        """Yield what has happened (`backlog`) and, with `follow`, what happens, from the event after the id `after` on; of a
        `stream` as CloudEvents.

        Ends where the stream does; raises UpstreamUnavailable where it breaks off.
        """
        headers = {"last-event-id": after} if after else {}
        query = {"follow": str(follow).lower(), "backlog": str(backlog).lower()}
        path = f"/events/{quote(stream, safe='')}" if stream else "/events"
        broken_off = f"the stream of events from {self._url} has broken off"
        with (
            connected(self._url, SILENCE_S, self._headers, self._verify) as client,
            streamed(client, "GET", path, broken_off=broken_off, params=query, headers=headers) as response,
        ):
            yield from parsed_events(response.iter_lines())
