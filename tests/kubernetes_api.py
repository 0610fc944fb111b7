"""A scripted Kubernetes API server: reads, writes, lists and watches in the real wire form, and the ways in which it
fails.

As the real one does, it numbers every change (resourceVersion), answers a watch with the changes since a number as
lines of JSON in chunks, ends it after timeoutSeconds, sends bookmarks, lists in pages, answers 410 for a number that it
has forgotten, 409 for a write that is based on an older object, 401 without its token and 403 for a verb that the
caller's role lacks; a write that changes nothing changes no number, and `/status` writes only that.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from control_plane.storage.kubernetes import KubernetesApi, Watching

Object = Mapping[str, Any]
KINDS = {
    ("discovery.k8s.io", "endpointslices"): "EndpointSlice",
    ("coordination.k8s.io", "leases"): "Lease",
    ("tidegate.io", "models"): "Model",
}
_PATH = re.compile(r"/apis/([a-z0-9.]+)/v1(?:alpha1)?/namespaces/tidegate/([a-z]+)(?:/([a-z0-9.-]+)(/status)?)?")
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
TOKEN = "a-token"


def endpoint(name: str, address: str, *, zone: str | None = "a", **conditions: bool | None) -> dict[str, Any]:
    """An endpoint; without conditions it is ready, as a controller writes it."""
    said = {"ready": True, "serving": True, "terminating": False, **conditions}
    where = {} if zone is None else {"zone": zone}
    return {"addresses": [address], "conditions": said, "targetRef": {"kind": "Pod", "name": name}, "nodeName": "node-1", **where}


def endpoint_slice(name: str, *endpoints: object, service: str = "triton", family: str = "IPv4", **labels: str) -> dict[str, Any]:
    ports = [{"name": word, "port": port, "protocol": "TCP"} for word, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002))]
    named = {f"tidegate.io/{key.replace('_', '-')}": value for key, value in labels.items()}
    metadata = {"name": name, "namespace": "tidegate", "labels": {"kubernetes.io/service-name": service, **named}}
    return {"addressType": family, "metadata": metadata, "endpoints": list(endpoints), "ports": ports}


def model_resource(name: str, **spec: object) -> dict[str, Any]:
    """A resource of kind Model, as `kubectl apply` sends it."""
    return {"apiVersion": "tidegate.io/v1alpha1", "kind": "Model", "metadata": {"name": name, "namespace": "tidegate"}, "spec": spec}


@dataclass
class ScriptedApi:
    """The server; a test changes its objects and its mood."""

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name, whatever their kind."""
    rules: Sequence[Mapping[str, Any]] | None = None
    """The rules of the caller's role; None: it may do everything."""
    log: list[str] = field(default_factory=list)
    """Each request: its verb, and what distinguishes it."""
    token: str = TOKEN
    unknown: set[tuple[str, str]] = field(default_factory=set)
    """Groups and resources of which the server knows nothing, as before a definition is installed."""
    page: int = 500
    is_silent: bool = False
    """Whether nothing is sent any more to those who watch, as if a packet filter had forgotten their connections."""
    ends_at_once: bool = False
    """Whether each watch is ended as soon as it begins, as a proxy does that lets no answer go on."""
    expires_continue: bool = False
    """Whether a list's second page is refused, as after a compaction of the store."""
    version: int = 100
    before_write: Callable[[dict[str, Any]], None] = lambda it: None
    """Called with the body of each write before it is looked at, such as to have somebody else write first."""
    invalid: set[str] = field(default_factory=set)
    """Names of objects whose status breaks a rule of their definition."""
    is_deaf: bool = False
    """Whether requests are read and never answered."""
    oldest: int = 0
    """The oldest version from which a watch may go on."""
    port: int = 0
    _history: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _connections: set[asyncio.StreamWriter] = field(default_factory=set)

    # What a test does.

    def apply(self, it: dict[str, Any]) -> None:
        """Create or replace an object."""
        name = it["metadata"]["name"]
        kind = "MODIFIED" if name in self.objects else "ADDED"
        if _kind(it) == "Model":
            before = self.objects.get(name, {"metadata": {}})
            generation = before["metadata"].get("generation", 0) + (before.get("spec") != it.get("spec"))
            made = {"uid": f"uid-{self.version}", "creationTimestamp": f"2026-11-23T20:00:00.{self.version:06d}Z", **before["metadata"]}
            it = {**it, "metadata": {**made, **it["metadata"], "generation": generation}}
        self.objects[name] = it
        self._note(kind, it)

    def delete(self, name: str) -> None:
        self._note("DELETED", self.objects.pop(name))

    def forget(self) -> None:
        """Forget the history, as a compaction does: whoever watches from before now gets 410."""
        self.version += 1
        self.oldest, self._history = self.version, []

    def bookmark(self) -> None:
        """Tell watchers how far the versions are, without a change of theirs."""
        self.version += 50
        self._history.append((self.version, "BOOKMARK", {"kind": "EndpointSlice", "metadata": {"resourceVersion": str(self.version)}}))
        self._wake()

    def say_nonsense(self) -> None:
        """Send watchers a bookmark of a form that it should not have."""
        self.version += 1
        self._history.append((self.version, "BOOKMARK", {"kind": "EndpointSlice", "metadata": ["nonsense"]}))
        self._wake()

    def fail(self, code: int, reason: str) -> None:
        """Send watchers an error in the midst of the stream."""
        self.version += 1
        self._history.append((self.version, "ERROR", _status(code, reason)))
        self._wake()

    async def stop(self) -> None:
        """End, and break every connection."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._connections):
            writer.transport.abort()
        self._wake()
        await self._server.wait_closed()

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    def asked(self, verb: str) -> int:
        return sum(line.startswith(verb) for line in self.log)

    @property
    def connected(self) -> int:
        """Connections that nobody has closed."""
        return len(self._connections)

    # What the server does.

    def _note(self, kind: str, it: dict[str, Any]) -> None:
        self.version += 1
        it["metadata"]["resourceVersion"] = str(self.version)
        self._history.append((self.version, kind, json.loads(json.dumps(it))))
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        # uvloop says RuntimeError of a transport that was aborted.
        with suppress(ConnectionError, asyncio.IncompleteReadError, RuntimeError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = re.search(r"(?i)\r\ncontent-length: *([0-9]+)", head)
                body = json.loads(await reader.readexactly(int(length[1]))) if length and int(length[1]) else {}
                if not self.is_deaf:
                    await self._answer(head, body, writer)
        self._connections.discard(writer)
        writer.close()

    async def _answer(self, head: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        method, target, _ = head.split("\r\n", 1)[0].split(" ")
        where = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(where.query).items()}
        found = _PATH.fullmatch(where.path)
        assert found, where.path
        group, resource, name, part = found.groups()
        verb = _VERBS[method] if method != "GET" or name else "watch" if query.get("watch") == "true" else "list"
        told = f"{verb} {name}{part or ''}" if name else f"{verb} {query.get('resourceVersion', '')}{query.get('continue', '')}"
        self.log.append(told.strip())
        if f"authorization: bearer {self.token}" not in head.lower():
            _respond(writer, 401, _status(401, "Unauthorized"))
        elif not self._may(group, resource + (part or ""), verb, name):
            message = f'{resource}.{group} is forbidden: User "system:serviceaccount:tidegate:gateway" cannot {verb} resource'
            _respond(writer, 403, _status(403, "Forbidden", message))
        elif (group, resource) in self.unknown:
            _respond(writer, 404, _status(404, "NotFound", "the server could not find the requested resource"))
        elif verb == "list":
            self._list(KINDS[group, resource], query, writer)
        elif verb == "watch":
            await self._watch(KINDS[group, resource], query, writer)
        else:
            if body:
                self.before_write(body)
            code, answer = self._one(KINDS[group, resource], verb, name or body["metadata"]["name"], part, body)
            _respond(writer, code, answer)

    def _may(self, group: str, resource: str, verb: str, name: str | None) -> bool:
        """What RBAC does; it cannot restrict `create` to a name, which is not known then."""
        return self.rules is None or any(
            group in rule["apiGroups"]
            and resource in rule["resources"]
            and verb in rule["verbs"]
            and ("resourceNames" not in rule or (verb != "create" and name in rule["resourceNames"]))
            for rule in self.rules
        )

    def _one(self, kind: str, verb: str, name: str, part: str | None, body: dict[str, Any]) -> tuple[int, Object]:
        """Read or write one object."""
        now = self.objects.get(name)
        now = now if now is not None and _kind(now) == kind else None
        if verb == "create":
            if now is not None:
                return 409, _status(409, "AlreadyExists", f'{kind} "{name}" already exists')
            self.apply({**body, "metadata": {**body["metadata"], "uid": f"uid-{self.version}"}})
            return 201, self.objects[name]
        if now is None:
            return 404, _status(404, "NotFound", f'{kind} "{name}" not found')
        if verb == "update":
            if (based_on := body["metadata"].get("resourceVersion")) and based_on != now["metadata"]["resourceVersion"]:
                return 409, _status(409, "Conflict", "the object has been modified; please apply your changes to the latest version")
            if part and name in self.invalid:
                return 422, _status(422, "Invalid", f'{kind} "{name}" is invalid: spec: Invalid value')
            if part:
                body = {**now, "status": body["status"]}
            elif kind == "Model":
                body = {**body, "status": now.get("status")}
            if json.dumps(body, sort_keys=True) != json.dumps(now, sort_keys=True):
                self.apply(json.loads(json.dumps(body)))
        return 200, self.objects[name]

    def _list(self, kind: str, query: Mapping[str, str], writer: asyncio.StreamWriter) -> None:
        begin = int(query.get("continue", "0"))
        if begin and self.expires_continue:
            self.expires_continue = False
            _respond(writer, 410, _status(410, "Expired"))
            return
        chosen = [it for it in self.objects.values() if _is_chosen(it, kind, query)]
        size = min(self.page, int(query["limit"]))
        metadata = {"resourceVersion": str(self.version)}
        if begin + size < len(chosen):
            metadata["continue"] = str(begin + size)
        _respond(writer, 200, {"kind": f"{kind}List", "metadata": metadata, "items": chosen[begin : begin + size]})

    async def _watch(self, kind: str, query: Mapping[str, str], writer: asyncio.StreamWriter) -> None:
        since = int(query["resourceVersion"])
        if since < self.oldest:
            _respond(writer, 410, _status(410, "Expired"))
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        sent = len([each for each in self._history if each[0] <= since])
        ends = asyncio.get_running_loop().time() + (0.0 if self.ends_at_once else float(query["timeoutSeconds"]))
        while not writer.is_closing() and ((left := ends - asyncio.get_running_loop().time()) > 0 or self.is_silent):
            changed = self._changed
            for _, change, it in self._history[sent:] if not self.is_silent else ():
                if change in ("BOOKMARK", "ERROR") or _is_chosen(it, kind, query):
                    line = json.dumps({"type": change, "object": it}).encode() + b"\n"
                    # Never where a line ends: events come in whatever pieces the network makes.
                    _chunk(writer, line[: len(line) // 2])
                    await writer.drain()
                    await asyncio.sleep(0)
                    _chunk(writer, line[len(line) // 2 :])
            sent = sent if self.is_silent else len(self._history)
            if self.is_silent:
                left = 3600.0
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), left)
            if since < self.oldest and not self.is_silent:
                sent = 0
                since = self.oldest
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def _kind(it: Mapping[str, Any]) -> str:
    return str(it.get("kind", "EndpointSlice"))


def _is_chosen(it: Mapping[str, Any], kind: str, query: Mapping[str, str]) -> bool:
    selector = query.get("labelSelector", "")
    key, _, values = selector.removesuffix(")").partition(" in (" if selector.endswith(")") else "=")
    return _kind(it) == kind and (not key or it["metadata"].get("labels", {}).get(key) in values.split(","))


def _status(code: int, reason: str, message: str = "") -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason, "message": message, "code": code}


def _respond(writer: asyncio.StreamWriter, code: int, body: Object) -> None:
    text = json.dumps(body).encode()
    writer.write(f"HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n".encode() + text)


def _chunk(writer: asyncio.StreamWriter, part: bytes) -> None:
    writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")


@contextmanager
def api_in_a_thread(tls: ssl.SSLContext | None = None) -> Iterator[tuple[ScriptedApi, Callable[[dict[str, Any]], None]]]:
    """A server for another process, and how to create or replace an object there."""
    api, loop = ScriptedApi(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(api.start(tls), loop).result(60.0)
        yield api, lambda it: loop.call_soon_threadsafe(api.apply, it) and None
    finally:
        asyncio.run_coroutine_threadsafe(api.stop(), loop).result(60.0)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def rules_of(manifest: str, *, without: str = "") -> list[Mapping[str, Any]]:
    """The rules of the one Role in a manifest, without a verb."""
    text = (Path(__file__).parents[1] / "deploy/kubernetes" / manifest).read_text()
    (role,) = [each for each in yaml.safe_load_all(text) if each["kind"] == "Role"]
    return [{**rule, "verbs": [verb for verb in rule["verbs"] if verb != without]} for rule in role["rules"]]


def write_account(folder: Path, token: str = TOKEN) -> Path:
    """The folder in which a pod finds its token."""
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(f"{token}\n")
    (folder / "namespace").write_text("tidegate")
    return folder


@asynccontextmanager
async def scripted_api() -> AsyncIterator[ScriptedApi]:
    api = ScriptedApi()
    await api.start()
    try:
        yield api
    finally:
        await api.stop()


def client(api: ScriptedApi, account: Path, *, ends_s: int = 1, silent_s: float = 0.5) -> KubernetesApi:
    """A client of the server, with limits short enough for a test."""
    return KubernetesApi(f"http://127.0.0.1:{api.port}", account, watching=Watching(ends_s, silent_s))
