"""Two regions on this machine: a gateway with a Triton each, which know each other; `there` is reached over TLS."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from control_plane.app.stores import open_state_store
from control_plane.auth.keys import Keys
from control_plane.core.scope import Right, Scope
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.tenant import LOCAL, Tenant
from control_plane.objects.objects import Objects
from perf.chaos import models as chaos_models
from tests.e2e import tidegate as servers
from tests.e2e.tidegate import Tidegate
from tests.tls_files import Authority

MODELS = Path(__file__).parents[1] / "models"
_GENERATIVE = Path(__file__).parents[1] / "generation/generative"
AGAIN = "again"
"""A route to the model whose requests may be computed twice."""
TENANTS = {"ordinary": Tenant("ordinary"), "resident": Tenant("resident", regions=LOCAL), "limited": Tenant("limited", requests_per_s=1.0)}
ADMIN = "operators"
SLOTS = {"TIDEGATE_MAX_IN_FLIGHT_PER_MODEL": "3", "TIDEGATE_MAX_IN_FLIGHT_PER_SHARED_MODEL": "3"}
"""Variables of both: so few requests are at a Triton that others wait for their turn."""


@dataclass(frozen=True)
class Two:
    """The two, and keys by tenant; that of `stranger` is valid `here` only."""

    here: Tidegate
    there: Tidegate
    keys: Mapping[str, str]
    authority: Authority

    def port(self, name: str) -> int:
        return (self.here if name == "here" else self.there).port("http")

    def context(self, name: str) -> ssl.SSLContext | None:
        return None if name == "here" else self.authority.client()


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now."""
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


def start_two(folder: Path) -> Two:
    """Start both, each with the tests' models, with the same tenants and keys."""
    authority, states = Authority(folder), {name: folder / name for name in ("here", "there")}
    keys = asyncio.run(_write_states(states["here"], states["there"]))
    ports = dict(zip(states, zip(*[iter(free_ports(4))] * 2, strict=True), strict=True))
    scheme = {"here": "http", "there": "https"}
    listed = [
        {
            "name": name,
            "url": f"{scheme[name]}://127.0.0.1:{http}",
            "grpc_url": f"{scheme[name]}://127.0.0.1:{grpc}",
            **({"ca": str(authority.certificate)} if name == "there" else {}),
        }
        for name, (http, grpc) in ports.items()
    ]
    regions = folder / "regions.yaml"
    regions.write_text(json.dumps(listed))  # which is YAML
    texts = chaos_models.write(folder / "models", [chaos_models.TEXT_MODEL])
    shown = authority.issue("there")
    tls = ("--tls-certificate", str(shown.certificate), "--tls-key", str(shown.key))
    started = {
        name: servers.start(
            states[name],
            *("--region", name, "--regions-file", str(regions), "--http-port", str(http), "--grpc-port", str(grpc)),
            *("--model-repository", str(MODELS), servers.COMPLETE, "--load", "slow", "--authentication"),
            *("--model-repository", str(texts), "--model-repository", str(_GENERATIVE)),
            *(
                ("--load", "echo", "--load", chaos_models.TEXT_MODEL, "--load", "parrot", *tls)
                if name == "there"
                else ("--request-log", str(folder / "requests.jsonl"))
            ),
            env=SLOTS,
        )
        for name, (http, grpc) in ports.items()
    }
    return Two(started["here"], started["there"], keys, authority)


async def _write_states(here: Path, there: Path) -> dict[str, str]:
    """Write tenants, keys and a route into both states; a stranger's key into the first one only."""
    here.mkdir(parents=True)
    keys = {}
    for names in ((*TENANTS, ADMIN), ("stranger",)):
        store = await open_state_store(None, here)
        objects = Objects(store)
        for name in names:
            await objects.put(TENANTS.get(name, Tenant(name)))
            scope = Scope(Right.ADMIN) if name == ADMIN else Scope(Right.INFER, "*")
            _, keys[name] = await Keys(store).create(name, [scope])
        if "stranger" not in names:
            await objects.put(Route(AGAIN, model="slow", is_repeatable=True))
        await store.close()
        if "stranger" not in names:
            shutil.copytree(here, there)
    return keys


def infer_bytes(key: str, seconds: float, *, fields: Sequence[str] = (), model: str = "slow", timeout_ms: int = 1000) -> bytes:
    """One request to the model that takes as long as it is told to."""
    body = json.dumps({"inputs": [{"name": "SECONDS", "datatype": "FP32", "shape": [1, 1], "data": [seconds]}]})
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: localhost", f"x-api-key: {key}", f"tidegate-timeout-ms: {timeout_ms}"]
    return ("\r\n".join((*lines, f"Content-Length: {len(body)}", *fields)) + "\r\n\r\n" + body).encode()


@dataclass
class Answered:
    """What callers were answered."""

    by: Counter[str] = field(default_factory=Counter)
    """Successes by region, `here` where the answer names none; other answers by status, such as `503`."""
    took_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def successes(self) -> int:
        return sum(count for name, count in self.by.items() if not name.isdigit())


def embed_bytes(key: str, number: float) -> bytes:
    """A call of `/v1/embeddings` whose one embedding is the number."""
    body = chaos_models.embeddings_body(chaos_models.TEXT_MODEL, number, 0.0)
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nx-api-key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def ask(two: Two, at: str, data: bytes, answered: Answered) -> None:
    """Send one request over a connection of its own, and note the answer."""
    began_s = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", two.port(at), ssl=two.context(at))
    try:
        writer.write(data)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        answered.texts.append((await reader.readexactly(int(fields.get("content-length", 0)))).decode())
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    status = head[9:12]
    answered.by[fields.get("tidegate-region", "here") if status == "200" else status] += 1
    answered.took_s.append(time.monotonic() - began_s)


async def ask_at_rate(two: Two, at: str, data: bytes, *, per_s: float, seconds: float) -> Answered:
    """Send requests at a rate, whatever becomes of those before (open loop)."""
    answered, began_s = Answered(), time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number in range(int(per_s * seconds)):
            await asyncio.sleep(max(0.0, began_s + number / per_s - time.monotonic()))
            tasks.create_task(ask(two, at, data, answered))
    return answered


def ask_once(two: Two, at: str, data: bytes) -> Answered:
    """Send one request."""
    answered = Answered()
    asyncio.run(ask(two, at, data, answered))
    return answered


def metric(two: Two, at: str, start: str) -> float:
    """Return the sum of the series whose lines begin so on a gateway's metrics page."""
    running = two.here if at == "here" else two.there
    asked = urllib.request.Request(running.endpoints["metrics"], headers={"x-api-key": two.keys[ADMIN]})
    with urllib.request.urlopen(asked, context=two.context(at)) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))


def sent(two: Two, at: str = "here") -> int:
    """Return how many requests a gateway has sent to the other region."""
    return int(metric(two, at, "tidegate_region_requests_total"))


def is_well(two: Two, at: str = "here") -> bool:
    """Whether a gateway finds the other region well."""
    return metric(two, at, "tidegate_region_up") == 1.0
