"""The Redis of the component `events`, with its configuration and the users that `make deploy` makes: who may do what there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from pydantic import SecretStr

from control_plane.events.adapters.redis_streams import PREFIX, make_redis_streams
from control_plane.events.domain.stream import Stream
from control_plane.events.ports import Position
from deploy.secrets import make_secrets
from tests.e2e.tidegate import wait_for
from tests.redis_server import free_port
from tests.unit.deploy.rendered import Case, containers, named, pod_spec, render

OBJECTS = render(Case("gpu", ("events",)))
SECRETS = make_secrets()


@dataclass(frozen=True)
class Events:
    """The Redis on a port of this machine, and its users' URLs."""

    port: int

    def url(self, key: str) -> str:
        user, _, _ = SECRETS["tidegate-events"][key].rpartition("@")
        return f"{user}@127.0.0.1:{self.port}/0"


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Events]:
    folder: Path = tmp_path_factory.mktemp("events")
    stateful = named(OBJECTS, "StatefulSet", "events")
    (container,) = containers(stateful)
    volumes: dict[str, Any] = {each["name"]: each for each in pod_spec(stateful)["volumes"]}
    ((name, config),) = named(OBJECTS, "ConfigMap", volumes["config"]["configMap"]["name"])["data"].items()
    assert [*container["command"], *container["args"]] == ["redis-server", f"/etc/redis/{name}"]
    (folder / "users.acl").write_text(SECRETS[volumes["users"]["secret"]["secretName"]]["users.acl"])
    own = config.replace("/run/secrets/redis/", f"{folder}/").replace("dir /data", f"dir {folder}")
    assert own.count(str(folder)) == 2
    (folder / name).write_text(own)
    program, port = shutil.which("redis-server"), free_port()
    assert program is not None
    process = subprocess.Popen([program, str(folder / name), "--port", str(port), "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL)
    probe = container["readinessProbe"]["exec"]["command"]
    try:
        wait_for(lambda: subprocess.run([probe[0], "-p", str(port), *probe[1:]], capture_output=True, timeout=60).returncode == 0)
        yield Events(port)
    finally:
        process.kill()
        process.wait()


async def test_gateways_publish_and_subscribers_read_in_a_group_and_can_do_nothing_else(events: Events) -> None:
    streams = make_redis_streams(SecretStr(events.url("events-url")), keep=1000, store="here")
    try:
        assert await streams.position(Stream.USAGE) == Position()
        assert await streams.advance(Stream.USAGE, [b"{}"], before=Position(), after=Position(1, "a"))
        assert await streams.position(Stream.USAGE) == Position(1, "a")
        await streams.append(Stream.REQUESTS, [b"{}", b"{}"])
    finally:
        await streams.close()

    subscriber: Any = redis.Redis.from_url(events.url("subscriber-url"))
    usage = PREFIX + Stream.USAGE
    subscriber.xgroup_create(usage, "billing", id="0")
    found: Any = subscriber.xreadgroup("billing", "one", {usage: ">"})
    ((_, ((place, fields),)),) = found
    assert fields == {b"event": b"{}"}
    assert subscriber.xack(usage, "billing", place) == 1
    assert subscriber.xlen(PREFIX + Stream.REQUESTS) == 2
    for words in (
        ("XADD", usage, "*", "event", "forged"),
        ("XDEL", usage, place),
        ("XTRIM", usage, "MAXLEN", "0"),
        ("DEL", usage),
        ("FLUSHALL",),
        ("SET", f"{PREFIX}position:here:usage", "[9,'b']"),
        ("GET", f"{PREFIX}position:here:usage"),
        ("XGROUP", "CREATE", f"{PREFIX}mine", "billing", "0", "MKSTREAM"),
        ("CONFIG", "GET", "*"),
        ("ACL", "LIST"),
        ("EVAL", "return 1", "0"),
        ("KEYS", "*"),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            subscriber.execute_command(*words)
    subscriber.close()

    gateway: Any = redis.Redis.from_url(events.url("events-url"))
    for words in (("FLUSHALL",), ("CONFIG", "SET", "maxmemory", "1"), ("ACL", "SETUSER", "x", "on"), ("SET", "another", "x")):
        with pytest.raises(redis.exceptions.NoPermissionError):
            gateway.execute_command(*words)
    gateway.close()


def test_nobody_without_a_password_may_do_more_than_ping(events: Events) -> None:
    stranger = redis.Redis(port=events.port)
    assert stranger.ping()
    with pytest.raises(redis.exceptions.NoPermissionError):
        stranger.xlen(PREFIX + Stream.USAGE)
    stranger.close()
