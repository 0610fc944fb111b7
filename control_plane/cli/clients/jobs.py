"""Client of asynchronous jobs (`/v2/jobs`), for `tidegate jobs`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx

from control_plane.admin.connection import IS_IT_RUNNING, SILENCE_S, asked, authorization, connected, streamed, trusted_at
from control_plane.admin.events.lines import parsed_events
from control_plane.core.errors import InvalidRequest, UpstreamUnavailable

_TIMEOUT_S = 60.0


class JobClient:
    """Client of asynchronous jobs on the data port; keeps one connection open. Raises as `admin/client.AdminClient` does."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """`url` may be `unix:PATH`. Raises as `admin/client.AdminClient` does."""
        self._url = url
        self._client = connected(url, _TIMEOUT_S, authorization(api_key), trusted_at(url))

    def submit(self, model: str, body: bytes, *, key: str, **options: str | None) -> dict[str, Any]:
        """Hand in the body of an infer request; where there is no room, come again when the gateway says so. `options` are further
        header fields, in UTF-8, with those of None left out.
        """
        given = {name.replace("_", "-"): value for name, value in options.items() if value is not None}
        for name, value in given.items():
            if not value.isprintable():
                raise InvalidRequest(f"{name} has a character that no header field can have: {value[:200]!r}")
        fields = {"idempotency-key": key, "content-type": "application/json"} | given
        headers = {name.encode(): value.encode() for name, value in fields.items()}
        path = f"/v2/models/{quote(model, safe='')}/jobs"
        found: dict[str, Any] = asked(
            self._url, lambda: self._client.post(path, content=body, headers=headers), again_at=httpx.codes.TOO_MANY_REQUESTS
        )
        return found

    def list_jobs(self, *, state: str | None, limit: int) -> list[dict[str, Any]]:
        query = {"limit": str(limit)} | ({"state": state} if state else {})
        found: list[dict[str, Any]] = asked(self._url, lambda: self._client.get("/v2/jobs", params=query))["jobs"]
        return found

    def show(self, job_id: str, *, wait_s: int = 0) -> dict[str, Any]:
        """Return a job; with `wait_s`, once it has ended, or after so many seconds."""
        headers = {"prefer": f"wait={wait_s}"} if wait_s else {}
        found: dict[str, Any] = asked(self._url, lambda: self._client.get(f"/v2/jobs/{quote(job_id, safe='')}", headers=headers))
        return found

    def events(self, job_id: str) -> Iterator[dict[str, Any]]:
        """Yield a job as it changes, from its present state on, for as long as the gateway says how it goes on: to its end,
        unless the gateway ends before. Raises UpstreamUnavailable: the stream breaks off.
        """
        path, broken_off = f"/v2/jobs/{quote(job_id, safe='')}/events", f"the stream of events from {self._url} has broken off"
        with streamed(self._client, "GET", path, broken_off=broken_off, timeout=SILENCE_S) as response:
            for event in parsed_events(response.iter_lines()):
                yield event["data"]

    def result(self, job_id: str) -> str:
        """Return the answer's body as text, whatever its status."""
        try:
            return self._client.get(f"/v2/jobs/{quote(job_id, safe='')}/result").text
        except httpx.HTTPError as exc:
            raise UpstreamUnavailable(f"no answer from {self._url}: {exc}{IS_IT_RUNNING}") from exc

    def cancel(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = asked(self._url, lambda: self._client.delete(f"/v2/jobs/{quote(job_id, safe='')}"))
        return found

    def close(self) -> None:
        self._client.close()
