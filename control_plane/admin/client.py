"""HTTP clients of a running `tidegate` for the command line: of its admin API, and of its data port."""

from __future__ import annotations

import json
import math
import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from control_plane.admin.events.lines import parsed_events
from control_plane.admin.wire import CONTINUE
from control_plane.core.errors import ControlPlaneError, InvalidRequest, ObjectNotFound, UpstreamUnavailable
from control_plane.core.model import NAME_RULE
from control_plane.profiling.inputs import TOKENS, generate_body
from control_plane.protocols.server_timing import ASKED_BY, SERVER_TIMING, read_timing

_LOAD_TIMEOUT_S = 600.0  # above the gateway's own deadline of a load, whose error is more to the point than a timeout here
_INFER_TIMEOUT_S = 60.0
_LONGEST_PAUSE_S = 30.0
_SILENCE_S = 45.0
"""Three heartbeats of a stream of events."""
_PAGE = 500
"""Objects of a list that one answer has."""
_SHOWABLE = re.compile("[!-~]+")
_REFUSALS: Mapping[int, type[ControlPlaneError]] = {404: ObjectNotFound, 503: UpstreamUnavailable}
"""Errors by the status of a gateway's refusal; of others it is InvalidRequest. A gateway says 503 while its store is away, 504 of a
load that takes too long."""
_OF_A_PROXY: Mapping[int, type[ControlPlaneError]] = {**_REFUSALS, 502: UpstreamUnavailable, 504: UpstreamUnavailable}
"""The same of an answer that is no gateway's but a proxy's, which says any of these three while the gateway is away."""


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
        self._verify = _trusted_at(url)

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
        path = _path(segments)
        with _client(self._url, self._timeout_s, self._headers, self._verify) as client:
            return _content(
                self._url,
                lambda: client.request(method, path, json=body, params=query, headers=headers),
                again_at=httpx.codes.SERVICE_UNAVAILABLE,
                tries=tries,
            )

    def ask_all(self, *segments: str) -> list[dict[str, Any]]:
        """Read a list, by the segments of its path, page by page."""
        found: list[dict[str, Any]] = []
        token = ""
        with _client(self._url, self._timeout_s, self._headers, self._verify) as client:
            while True:
                query = {"limit": str(_PAGE)} | ({"continue": token} if token else {})
                answers: list[httpx.Response] = []

                def send(query: Mapping[str, str] = query, answers: list[httpx.Response] = answers) -> httpx.Response:
                    answers.append(client.get(_path(segments), params=query))
                    return answers[-1]

                found += _content(self._url, send)
                token = answers[-1].headers.get(CONTINUE, "")
                if not token:
                    return found

    def events(self, *, follow: bool, after: str = "", stream: str = "", backlog: bool = True) -> Iterator[dict[str, Any]]:
        """Yield what has happened (`backlog`) and, with `follow`, what happens, from the event after the id `after` on; of a
        `stream` as CloudEvents.

        Ends where the stream does; raises UpstreamUnavailable where it breaks off.
        """
        headers = {"last-event-id": after} if after else {}
        query = {"follow": str(follow).lower(), "backlog": str(backlog).lower()}
        path = f"/events/{quote(stream, safe='')}" if stream else "/events"
        try:
            with (
                _client(self._url, _SILENCE_S, self._headers, self._verify) as client,
                client.stream("GET", path, params=query, headers=headers) as response,
            ):
                if not response.is_success:
                    response.read()
                    raise _refusal(response)
                yield from parsed_events(response.iter_lines())
        except (httpx.HTTPError, ValueError) as exc:
            raise UpstreamUnavailable(f"the stream of events from {self._url} has broken off: {exc}") from exc


class EmbeddingClient:
    """Client of an embedding ensemble on the data port; keeps one connection open."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """`url` may be `unix:PATH`. Raises as AdminClient does."""
        self._url = url
        self._client = _client(url, _INFER_TIMEOUT_S, authorization(api_key), _trusted_at(url))

    def embed(self, texts: list[str], model: str) -> list[list[float]]:
        """Return one embedding per text, of as many numbers as the model gives. Raises as AdminClient's
        methods do.
        """
        tensor = {"name": "TEXT", "shape": [len(texts), 1], "datatype": "BYTES", "data": texts}
        answer = _content(
            self._url,
            lambda: self._client.post(f"/v2/models/{quote(model, safe='')}/infer", content=json.dumps({"inputs": [tensor]})),
        )
        return embeddings_in(answer, model, len(texts))

    def close(self) -> None:
        self._client.close()


class JobClient:
    """Client of asynchronous jobs on the data port; keeps one connection open. Raises as AdminClient does."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """`url` may be `unix:PATH`. Raises as AdminClient does."""
        self._url = url
        self._client = _client(url, _INFER_TIMEOUT_S, authorization(api_key), _trusted_at(url))

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
        found: dict[str, Any] = _content(
            self._url, lambda: self._client.post(path, content=body, headers=headers), again_at=httpx.codes.TOO_MANY_REQUESTS
        )
        return found

    def list_jobs(self, *, state: str | None, limit: int) -> list[dict[str, Any]]:
        query = {"limit": str(limit)} | ({"state": state} if state else {})
        found: list[dict[str, Any]] = _content(self._url, lambda: self._client.get("/v2/jobs", params=query))["jobs"]
        return found

    def show(self, job_id: str, *, wait_s: int = 0) -> dict[str, Any]:
        """Return a job; with `wait_s`, once it has ended, or after so many seconds."""
        headers = {"prefer": f"wait={wait_s}"} if wait_s else {}
        found: dict[str, Any] = _content(self._url, lambda: self._client.get(f"/v2/jobs/{quote(job_id, safe='')}", headers=headers))
        return found

    def events(self, job_id: str) -> Iterator[dict[str, Any]]:
        """Yield a job as it changes, from its present state on, for as long as the gateway says how it goes on: to its end,
        unless the gateway ends before. Raises UpstreamUnavailable: the stream breaks off.
        """
        try:
            with self._client.stream("GET", f"/v2/jobs/{quote(job_id, safe='')}/events", timeout=_SILENCE_S) as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(response)
                for event in parsed_events(response.iter_lines()):
                    yield event["data"]
        except (httpx.HTTPError, ValueError) as exc:
            raise UpstreamUnavailable(f"the stream of events from {self._url} has broken off: {exc}") from exc

    def result(self, job_id: str) -> str:
        """Return the answer's body as text, whatever its status."""
        try:
            return self._client.get(f"/v2/jobs/{quote(job_id, safe='')}/result").text
        except httpx.HTTPError as exc:
            raise UpstreamUnavailable(f"no answer from {self._url}: {exc}; is `tidegate serve` running there?") from exc

    def cancel(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = _content(self._url, lambda: self._client.delete(f"/v2/jobs/{quote(job_id, safe='')}"))
        return found

    def close(self) -> None:
        self._client.close()


class ModelClient:
    """Client of one model on the data port; keeps one connection open. Raises as AdminClient does."""

    def __init__(self, url: str, model: str, api_key: str | None = None, *, timeout_s: float = _INFER_TIMEOUT_S) -> None:
        """`url` may be `unix:PATH`. Raises as AdminClient does."""
        self._url = url
        self._model = model
        self._client = _client(url, timeout_s, authorization(api_key), _trusted_at(url))

    def ping(self) -> None:
        """Send a request that no model computes."""
        self._sent(lambda: self._client.get("/v2/health/live"))

    def metadata(self) -> dict[str, Any]:
        return self._ask("v2", "models", self._model)

    def config(self) -> dict[str, Any]:
        return self._ask("v2", "models", self._model, "config")

    def statistics(self, model: str) -> Any:
        return self._ask("v2", "models", model, "stats")

    def encoded(self, request: Mapping[str, Any]) -> bytes:
        """Write a request for `infer`."""
        return json.dumps(request).encode()

    def infer(self, request: bytes) -> dict[str, float]:
        """Have a request in JSON computed; its answer is dropped unread, as who asks times it. Return the milliseconds that the
        gateway tells of it."""
        path = _path(("v2", "models", self._model, "infer"))
        response = self._sent(lambda: self._client.post(path, content=request, headers={ASKED_BY: "1"}))
        if not response.is_success:
            raise _refusal(response)
        return read_timing(response.headers.get(SERVER_TIMING, ""))

    def encoded_stream(self, request: Mapping[str, Any]) -> bytes:
        """Write a request for `stream`. Raises InvalidRequest."""
        return json.dumps(generate_body(request)).encode()

    def stream(self, request: bytes, heard: Callable[[int | None], None]) -> dict[str, float]:
        """Have a request answered response by response, and call `heard` at each with its tokens, as far as the model counts them.
        Return the milliseconds that the gateway tells of the first response."""
        path = _path(("v2", "models", self._model, "generate_stream"))
        try:
            with self._client.stream("POST", path, content=request, headers={ASKED_BY: "1"}) as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(response)
                for event in parsed_events(response.iter_lines()):
                    heard(_tokens_in(event["data"]))
                return read_timing(response.headers.get(SERVER_TIMING, ""))
        except (httpx.HTTPError, ValueError) as exc:
            raise UpstreamUnavailable(f"the answer from {self._url} has broken off: {exc}; is `tidegate serve` running there?") from exc

    def close(self) -> None:
        self._client.close()

    def _sent(self, send: Callable[[], httpx.Response]) -> httpx.Response:
        try:
            return send()
        except httpx.HTTPError as exc:
            raise UpstreamUnavailable(f"no answer from {self._url}: {exc}; is `tidegate serve` running there?") from exc

    def _ask(self, *segments: str) -> dict[str, Any]:
        found = _content(self._url, lambda: self._client.get(_path(segments)))
        if not isinstance(found, dict):
            raise InvalidRequest(f"{self._url} answers otherwise than a gateway does; is that its data port?")
        return found


def embeddings_in(answer: Any, model: str, texts: int) -> list[list[float]]:
    """Return the embeddings in the answer of `model` to so many texts, one for each. Raises InvalidRequest: it has answered otherwise."""
    try:
        output = answer["outputs"][0]
        count, width = output["shape"]
        numbers = [float(number) for number in output["data"]]
    except (KeyError, IndexError, TypeError, ValueError):
        count, width, numbers = 0, 0, []
    if count != texts or len(numbers) != count * width:
        raise InvalidRequest(f"model {model!r} does not answer with one embedding per text")
    return [numbers[row * width : (row + 1) * width] for row in range(count)]


def _tokens_in(response: Any) -> int | None:
    if not isinstance(response, dict):
        raise ValueError("a response is no object")
    if "error" in response:
        raise InvalidRequest(f"{response['error']} (in the stream)")
    found = response.get(TOKENS)
    counts = found if isinstance(found, list) else [found]
    return sum(counts) if all(isinstance(each, int) for each in counts) else None


def _pause_s(refused: httpx.Response) -> float:
    """Return how long to wait until the next attempt: the seconds that the answer says; where it says none, or a date, one."""
    told = refused.headers.get("retry-after", "")
    return min(float(told), _LONGEST_PAUSE_S) if told.isascii() and told.isdecimal() else 1.0


def _path(segments: Iterable[str]) -> str:
    segments = list(segments)
    for segment in segments:
        if segment in ("", ".", "..") or "/" in segment:  # would be another path
            raise InvalidRequest(f"{segment[:200]!r} is no name: a name is {NAME_RULE}")
    return "".join(f"/{quote(segment, safe='')}" for segment in segments)


def _client(url: str, timeout_s: float, headers: dict[str, str], verify: ssl.SSLContext | bool) -> httpx.Client:
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


def _trusted_at(url: str) -> ssl.SSLContext | bool:
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


def _content(url: str, send: Callable[[], httpx.Response], *, again_at: int | None = None, tries: float = math.inf) -> Any:
    """Return the content of an answer; while its status is `again_at` it is sent for again, up to `tries` times in all, as far
    apart as the answer says. Raises what the answer refuses, UpstreamUnavailable: there is none."""
    try:
        response = send()
        while response.status_code == again_at and (tries := tries - 1) > 0:
            time.sleep(_pause_s(response))
            response = send()
        if response.is_success:
            return _read(response)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
        raise UpstreamUnavailable(f"no answer from {url}: {exc}; is `tidegate serve` running there?") from exc
    raise _refusal(response)


def _read(response: httpx.Response) -> Any:
    if response.status_code == httpx.codes.NO_CONTENT:
        return None
    return response.text if response.headers.get("content-type", "").startswith("text/csv") else response.json()


_WHERE_IN_REQUEST = re.compile(r"(?:(?<=; )|\A)(?:body|path|query)\.(?=[\w.]+: )")
"""Where the admin API found a wrong field; people at a command line have made no request."""


_NO_SUCH_PATH = "Not Found"
"""The answer of a data port to a path that it does not have."""


def _refusal(response: httpx.Response) -> ControlPlaneError:
    try:
        text, kinds = response.json()["error"] + "", _REFUSALS  # TypeError: it is no text
    except (ValueError, KeyError, TypeError):
        text, kinds = response.text, _OF_A_PROXY
    if text == _NO_SUCH_PATH and not response.request.url.path.startswith("/v2/"):
        text = "there is no admin API at that address: give that of the admin port, which is port 8080 unless --admin-port says otherwise"
    advice = "; commands send the key in TIDEGATE_API_KEY" if response.status_code == httpx.codes.UNAUTHORIZED else ""
    text = _WHERE_IN_REQUEST.sub("", text)
    return kinds.get(response.status_code, InvalidRequest)(f"{text} (HTTP {response.status_code}){advice}")
