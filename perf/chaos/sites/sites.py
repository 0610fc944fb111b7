"""What drills are carried out on: gateways with their real Tritons, started as a user starts them, and shared by the drills that can."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from control_plane.app.stores import open_state_store
from control_plane.auth.keys import Keys
from control_plane.core.errors import ControlPlaneError
from control_plane.core.scope import parse_scope
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.objects import Objects
from perf.chaos import models
from perf.chaos.sites import small_disk
from perf.chaos.sites.durable_redis import Redis
from perf.chaos.sites.gateways import Gateway, Node
from perf.chaos.way import Way
from perf.servers import serving

QUIET, LOUD, ADMINISTRATOR = "quiet", "loud", "administrator"
_SERVERS = 3
_ROOM = "122MiB"
"""On each server, for five models and two small ones: two of them and the small ones are there to stay."""
_LITTLE_ROOM = "102MiB"
LOAD_TIMEOUT_S = 8.0
_WORKERS = 2
_DISK_BYTES = 96 << 20
_EVERYWHERE = (models.REPEATABLE_MODEL, models.ONCE_MODEL, models.TEXT_MODEL, models.WRITER)
_ALL_MODELS = (*_EVERYWHERE, *models.COLD, models.HANGS, models.CORRUPT, models.HOG)
_VARIABLES = {"TIDEGATE_LOAD_TIMEOUT_S": f"{LOAD_TIMEOUT_S:g}"}


@dataclass(slots=True)
class Site:
    """Some gateways before some Tritons, and what is there while all is well."""

    gateways: Sequence[Gateway]
    replicas: int
    """Of each of `_EVERYWHERE`; 0 where models are loaded once and nothing is shown."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """By tenant; empty without authentication."""
    redis: Redis | None = None
    tritons: Sequence[Gateway] = ()
    """Where others run them: whose Tritons and stubs they are."""
    disk: Path | None = None
    """The small one, if there is one."""
    ways: Sequence[Way] = ()
    """To the nodes, if there are any."""
    regions: Sequence[Gateway] = ()
    """Gateways of other regions, whom no caller asks."""
    is_fleet: bool = True

    @property
    def gateway(self) -> Gateway:
        return self.gateways[0]

    @property
    def hosts(self) -> Sequence[Gateway]:
        return self.tritons or self.gateways

    def is_whole(self) -> bool:
        """Whether every process is there, and every replica that there is while all is well."""
        if not all(each.is_running for each in (*self.gateways, *self.tritons, *self.regions)):
            return False
        if not self.replicas:
            return self._knows_its_regions()
        return self._has_its_stubs() and (self._fleet_is_whole() if self.is_fleet else self.gateway.has_ready(_EVERYWHERE))

    def _has_its_stubs(self) -> bool:
        return all(sum(len(host.stubs(model)) for host in self.hosts) >= self.replicas for model in _EVERYWHERE)

    def _fleet_is_whole(self) -> bool:
        try:
            shown = [each.fleet() for each in self.gateways]
        except ControlPlaneError:
            return False
        has_leader = sum(each["is_leader"] for each in shown) == 1
        return has_leader and all(map(self._has_all, shown))

    def _knows_its_regions(self) -> bool:
        """Whether each region finds the others well."""
        try:
            return (
                all(each["is_well"] for gateway in (*self.gateways, *self.regions) for each in gateway.regions()) if self.regions else True
            )
        except ControlPlaneError:
            return False

    def _has_all(self, fleet: Mapping[str, Any]) -> bool:
        ready = Counter(replica["model"] for server in fleet["servers"] for replica in server["replicas"] if replica["state"] == "READY")
        return not any(server["is_ejected"] for server in fleet["servers"]) and all(ready[model] >= self.replicas for model in _EVERYWHERE)

    def leader(self) -> Gateway:
        """The gateway that loads. Raises RuntimeError if it is none or several."""
        leaders = [each for each in self.gateways if each.fleet()["is_leader"]]
        if len(leaders) != 1:
            raise RuntimeError(f"{len(leaders)} gateways say that they own the fleet")
        return leaders[0]


@contextmanager
def three_servers(folder: Path) -> Iterator[Site]:
    """One gateway, three Tritons, a replica of two models on each."""
    with _fleet(folder, "--servers", str(_SERVERS)) as site:
        yield site


@contextmanager
def two_workers(folder: Path) -> Iterator[Site]:
    """The same with two worker processes and two Tritons."""
    with _fleet(folder, "--servers", "2", "--workers", str(_WORKERS), replicas=2) as site:
        yield site


@contextmanager
def _fleet(folder: Path, *flags: str, replicas: int = _SERVERS) -> Iterator[Site]:
    repository = models.write(folder / "models", _ALL_MODELS)
    gateway = Gateway(
        folder / "state", *flags, "--memory-budget", _ROOM, "--model-repository", str(repository), *_loads(), variables=_VARIABLES
    )
    with _running(gateway):
        for model in _EVERYWHERE:
            gateway.load_everywhere(model)
        yield Site([gateway], replicas)


@contextmanager
def three_nodes(folder: Path) -> Iterator[Site]:
    """One gateway before three Tritons with nodes, to each of which a way leads that can be held up."""
    repository = models.write(folder / "models", _ALL_MODELS)
    secret = folder / "secret"
    secret.write_text(secrets.token_hex(32) + "\n")
    flags = ("--model-repository", str(repository))
    nodes = [Node(folder / f"node-{number}", *flags, secret=secret, variables=_VARIABLES) for number in range(_SERVERS)]
    with ExitStack() as ends:
        for node in nodes:
            ends.enter_context(_running(node))
        ways = [Way(node.port) for node in nodes]
        for way in ways:
            ends.callback(way.close)
        urls = ",".join(node.url(way.port) for node, way in zip(nodes, ways, strict=True))
        attached = ("--triton-url", urls, "--node-secret-file", str(secret), "--memory-budget", _ROOM, *_loads())
        gateway = Gateway(folder / "state", *attached, variables=_VARIABLES)
        ends.enter_context(_running(gateway))
        for model in _EVERYWHERE:
            gateway.load_everywhere(model)
        yield Site([gateway], _SERVERS, tritons=nodes, ways=ways)


@contextmanager
def two_gateways(folder: Path) -> Iterator[Site]:
    """Two with one Redis for keys and the lease, before one Triton that neither has started."""
    repository = models.write(folder / "models", _ALL_MODELS)
    shared = {"TIDEGATE_LOCK_MODEL_CONTROL": "false"}
    host = Gateway(folder / "host", "--model-repository", str(repository), "--triton-transport", "tcp", variables=shared)
    redis = Redis(folder / "redis")
    with ExitStack() as ends:
        ends.callback(redis.stop)
        redis.start()
        keys = asyncio.run(_make_keys(redis.url))
        ends.enter_context(_running(host))
        started = serving.Tidegate(host.pid, {}, host.state)
        at = serving.triton_addresses(started)
        url = f"http://{at['http']}?grpc_port={_port(at['grpc'])}&metrics_port={_port(at['metrics'])}"
        flags = ("--triton-url", url, "--memory-budget", _LITTLE_ROOM, "--model-repository", str(repository), *_loads())
        secured = ("--authentication", "--state-url", redis.url)
        gateways = [Gateway(folder / name, *flags, *secured, key=keys[ADMINISTRATOR], variables=_VARIABLES) for name in ("one", "other")]
        for gateway in gateways:
            ends.enter_context(_running(gateway))
        yield Site(gateways, 1, keys, redis, [host])


@contextmanager
def one_server(folder: Path) -> Iterator[Site]:
    """One Triton, as who tries Tidegate first has it, open to all."""
    with _one(folder) as site:
        yield site


@contextmanager
def one_server_with_keys(folder: Path) -> Iterator[Site]:
    """The same, and who asks must show a key."""
    keys = asyncio.run(_make_keys(None, folder / "state"))
    with _one(folder, "--authentication", key=keys[ADMINISTRATOR]) as site:
        yield replace(site, keys=keys)


@contextmanager
def _one(folder: Path, *flags: str, key: str = "") -> Iterator[Site]:
    repository = models.write(folder / "models", (*_EVERYWHERE, models.HANGS, models.CORRUPT))
    own = ("--model-repository", str(repository), *_loads(), *flags)
    with _running(Gateway(folder / "state", *own, key=key, variables=_VARIABLES)) as gateway:
        yield Site([gateway], 1, is_fleet=False)


@contextmanager
def two_regions(folder: Path) -> Iterator[Site]:
    """A gateway and its Triton in each of two regions, which know each other; callers ask one of them."""
    repository, listed = models.write(folder / "models", _EVERYWHERE), folder / "regions.yaml"
    flags = ("--model-repository", str(repository), *_loads(), "--regions-file", str(listed))
    regions = {name: Gateway(folder / name, *flags, "--region", name) for name in ("here", "there")}
    listed.write_text("".join(f"- {{name: {name}, {_urls(gateway)}}}\n" for name, gateway in regions.items()))
    with _running(regions["here"]) as here, _running(regions["there"]) as there:
        yield Site([here], 0, regions=[there])


def _urls(gateway: Gateway) -> str:
    return f"url: 'http://{gateway.address('http')}', grpc_url: 'http://{gateway.address('grpc')}'"


@contextmanager
def small_state_disk(folder: Path) -> Iterator[Site]:
    """All that a gateway writes lies on a file system of its own."""
    repository = models.write(folder / "models", _ALL_MODELS)
    with small_disk.mounted(folder / "disk", _DISK_BYTES) as disk:
        flags = ("--memory-budget", _ROOM, "--model-repository", str(repository), *_loads())
        with _running(Gateway(disk / "state", *flags, variables=_VARIABLES)) as gateway:
            yield Site([gateway], 1, disk=disk)


@contextmanager
def small_warm_disk(folder: Path) -> Iterator[Site]:
    """What is fetched from a store lies on a file system of its own."""
    repository = models.write(folder / "models", _EVERYWHERE)
    store = models.write(folder / "store", models.COLD, padding_bytes=models.PADDING_BYTES)
    with small_disk.mounted(folder / "disk", _DISK_BYTES) as disk:
        flags = ("--memory-budget", _ROOM, "--model-repository", str(repository), *_loads())
        tiers = ("--model-store", str(store), "--warm-dir", str(disk / "warm"))
        with _running(Gateway(folder / "state", *flags, *tiers, variables=_VARIABLES)) as gateway:
            yield Site([gateway], 1, disk=disk)


@contextmanager
def _running(gateway: Gateway) -> Iterator[Gateway]:
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()


def wait_until_whole(site: Site, timeout_s: float) -> float:
    """The seconds until it is. Blocks. Raises TimeoutError."""
    began_s = time.monotonic()
    while not site.is_whole():
        if time.monotonic() - began_s > timeout_s:
            raise TimeoutError(f"not as before after {timeout_s:g} s")
        time.sleep(0.1)
    return time.monotonic() - began_s


def _loads() -> list[str]:
    return [part for model in _EVERYWHERE for part in ("--load", model)]


def _port(address: str) -> str:
    return address.rpartition(":")[2]


async def _make_keys(url: str | None, state: Path = Path()) -> dict[str, str]:
    """Two tenants' keys for inference and an administrator's."""
    store = await open_state_store(SecretStr(url) if url else None, state)
    scopes = {QUIET: "infer:*", LOUD: "infer:*", ADMINISTRATOR: "admin"}
    try:
        for tenant in scopes:
            await Objects(store).put(Tenant(tenant))
        return {tenant: (await Keys(store).create(tenant, [parse_scope(scope)]))[1] for tenant, scope in scopes.items()}
    finally:
        await store.close()


SITES: Mapping[str, Callable[[Path], AbstractContextManager[Site]]] = {
    each.__name__.replace("_", " "): each
    for each in (
        *(three_servers, two_workers, three_nodes, two_gateways, two_regions),
        *(one_server, one_server_with_keys, small_state_disk, small_warm_disk),
    )
}
"""By name."""
