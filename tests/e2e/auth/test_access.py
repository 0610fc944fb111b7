"""What is changed at one gateway holds at all of them within a second; and they go on while their store is away."""

from __future__ import annotations

import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from control_plane.cli.backup import backup, restore
from control_plane.core.errors import Conflict, InvalidRequest
from tests.e2e import raw_http
from tests.e2e import tidegate as servers
from tests.e2e.accounts import OPERATORS, Administrator, id_of, make_first_key
from tests.e2e.auth import probes
from tests.e2e.auth.probes import Probe, make_of, probes_at, probing
from tests.e2e.conftest import Start
from tests.e2e.processes import triton_url
from tests.e2e.tidegate import LONG_S, Tidegate, wait_for
from tests.redis_server import RedisServer, redis_server

LATEST_S = 10.0
"""A second is promised of revocations, and held to in virtual time; here a busy machine may be late, but nobody looks only now and then."""
_RARELY_S = 0.2
"""Less often than would be slowed."""
EVERYTHING = ("infer:*", "metrics", "admin")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def pair(tidegate: Tidegate, tmp_path_factory: pytest.TempPathFactory, redis: RedisServer) -> Iterator[tuple[Tidegate, Tidegate, str]]:
    """Two gateways over one Redis and one Triton, and an administrator's key."""
    folder = tmp_path_factory.mktemp("pair")
    key = make_first_key(folder, redis.url)
    flags = ("--authentication", "--state-url", redis.url, "--triton-url", triton_url(tidegate))
    gateways = [servers.start(folder / name, *flags) for name in ("first", "second")]
    yield gateways[0], gateways[1], key
    stopped = [gateway.stop() for gateway in gateways]
    assert stopped == [0, 0], [gateway.said() for gateway in gateways]


def behind_s(gateway: Tidegate, key: str) -> float:
    """By its metrics port."""
    request = urllib.request.Request(gateway.endpoints["metrics"], headers={"x-api-key": key})
    with urllib.request.urlopen(request, timeout=LONG_S) as page:
        found = re.search(r"^tidegate_state_behind_seconds (\S+)$", page.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found.group(1))


def is_accepted(gateway: Tidegate, key: str) -> bool:
    """On a connection of its own."""
    return raw_http.status(raw_http.infer(gateway.port("http"), "echo", probes.ECHO, fields=[("x-api-key", key)])) == 200


def revoke_beside(probes: list[Probe], administrator: Administrator, key: str) -> dict[str, float]:
    """Seconds after the revocation's answer at which each probe was still accepted."""
    with probing(probes):
        assert not any(probe.refused for probe in probes), [probe.name for probe in probes if probe.refused]
        administrator.revoke(key)
        revoked_s = time.monotonic()
        wait_for(lambda: all(probe.refused for probe in probes), what="refusals at every frontend")
    return {probe.name: round(probe.accepted_until_s - revoked_s, 3) for probe in probes}


def test_two_gateways_over_one_redis(pair: tuple[Tidegate, Tidegate, str]) -> None:
    first, second, admin_key = pair
    administrator, other = (Administrator(gateway, admin_key) for gateway in (first, second))
    assert other.do("GET", "/keys")
    key = administrator.make_key(OPERATORS, *EVERYTHING)
    wait_for(lambda: probes.status_of(second.endpoints["metrics"], key) == 200, what="a new key", every_s=_RARELY_S)

    late_s = revoke_beside(probes_at((first, second), key), administrator, key)

    assert max(late_s.values()) <= LATEST_S, late_s
    assert {each["id"]: each["revoked_s"] for each in other.do("GET", "/keys")}[id_of(key)], "an administrator is not slowed with it"


def test_workers_over_one_sqlite(tidegate: Tidegate, start: Start, tmp_path: Path) -> None:
    admin_key = make_first_key(tmp_path / "state")
    gateway = start(tmp_path / "state", "--authentication", "--workers", "2", "--triton-url", triton_url(tidegate))
    administrator = Administrator(gateway, admin_key)
    key = administrator.make_key(OPERATORS, *EVERYTHING)
    wait_for(lambda: all(is_accepted(gateway, key) for _ in range(8)), what="a new key at both workers", every_s=_RARELY_S)

    fresh = {"fresh HTTP": probes.fresh_http, "fresh gRPC": probes.fresh_grpc}
    beside = [*probes_at((gateway,), key), *(Probe(name, make_of(gateway, key, frontend)) for name, frontend in fresh.items())]
    late_s = revoke_beside(beside, administrator, key)

    assert max(late_s.values()) <= LATEST_S, late_s
    assert gateway.stop() == 0, gateway.said()


@pytest.mark.timeout(180)
def test_a_backup_beside_a_gateway_is_never_of_an_empty_store_of_its_own(
    pair: tuple[Tidegate, Tidegate, str], redis: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its state folder alone: this Redis has a password, so it is asked for; one without would be found."""
    saved, folder, place = tmp_path / "saved.jsonl", pair[0].state_dir, f"redis://127.0.0.1:{redis.port}/0"
    Administrator(pair[0], pair[2]).make_tenant("team")
    with pytest.raises(InvalidRequest, match=f"keeps its state in {re.escape(place)}, .*: set the same TIDEGATE_STATE_URL"):
        backup(saved, state_dir=folder)
    assert not saved.exists()
    backup(saved, redis.url, state_dir=folder)
    assert re.search(rf"\d objects and \d usage sums of {re.escape(place)} saved", capsys.readouterr().out)
    restore(saved, state_dir=tmp_path / "restored")
    with pytest.raises(Conflict, match="the store is not empty"):  # the gateway's, not one of the folder's own
        restore(saved, state_url=redis.url, state_dir=folder)


def test_one_that_starts_while_redis_hangs_waits_for_it_or_for_a_signal(tidegate: Tidegate, start: Start, tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    flags = ("--triton-url", triton_url(tidegate), "--state-url")
    with redis_server(tmp_path / "redis") as redis, ThreadPoolExecutor(2) as threads:
        redis.process.send_signal(signal.SIGSTOP)
        starting = threads.submit(start, tmp_path / "one", *flags, redis.url)
        other = subprocess.Popen(
            servers.command("serve", *servers.FREE_PORTS, "--state-dir", str(tmp_path / "other"), *flags, redis.url),
            stderr=subprocess.PIPE,
            text=True,
            cwd=servers.PROJECT,
        )
        assert other.stderr is not None
        said = (line for line in other.stderr if "waiting for the state store" in line)
        assert f"127.0.0.1:{redis.port}/0 does not answer within 1 s" in next(said)
        other.send_signal(signal.SIGTERM)
        assert other.wait(timeout=LONG_S) == 0
        other.stderr.close()
        assert not starting.done()
        redis.process.send_signal(signal.SIGCONT)
        assert starting.result().stop() == 0


def test_an_emptied_redis_locks_nobody_out(tidegate: Tidegate, start: Start, tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    with redis_server(tmp_path / "redis") as redis:
        admin_key = make_first_key(tmp_path / "keys", redis.url)
        gateway = start(tmp_path / "state", "--authentication", "--state-url", redis.url, "--triton-url", triton_url(tidegate))
        administrator = Administrator(gateway, admin_key)
        key = administrator.make_key(OPERATORS, *EVERYTHING)
        wait_for(lambda: is_accepted(gateway, key), what="a new key", every_s=_RARELY_S)
        saved = tmp_path / "saved.jsonl"
        backup(saved, redis.url, state_dir=tmp_path / "state")
        assert redis.call("FLUSHALL") == b"+OK\r\n"
        wait_for(lambda: administrator.call("GET", "/health/ready")[1]["degraded"], what="word of it", every_s=_RARELY_S)
        assert is_accepted(gateway, key)
        status, readiness = administrator.call("GET", "/health/ready")
        assert (status, readiness["state_store"]["is_current"]) == (200, False)
        assert "the state store has come back empty" in readiness["degraded"][0]
        assert administrator.call("PUT", "/tenants/other", {})[0] in (200, 201), "the administrator is let in as well"
        restore(saved, state_url=redis.url, state_dir=tmp_path / "state", force=True)
        wait_for(lambda: not administrator.call("GET", "/health/ready")[1]["degraded"], what="the backup", every_s=_RARELY_S)
        assert is_accepted(gateway, key)
        assert gateway.stop() == 0, gateway.said()
    assert gateway.said().count("has come back empty") == 1


def test_while_redis_hangs_they_go_on_with_what_they_know(pair: tuple[Tidegate, Tidegate, str], redis: RedisServer) -> None:
    """One that has ended is told of sooner: tests/contract/stores/test_redis.py."""
    first, second, admin_key = pair
    administrators = [Administrator(gateway, admin_key) for gateway in (first, second)]
    key = administrators[0].make_key(OPERATORS, "infer:*", "metrics")
    wait_for(lambda: probes.status_of(second.endpoints["metrics"], key) == 200, what="a new key", every_s=_RARELY_S)
    frontends = ("http", "grpc", "an open stream")
    beside = probes_at((first, second), key, frontends)

    with probing(beside):
        redis.process.send_signal(signal.SIGSTOP)
        for gateway, administrator in zip((first, second), administrators, strict=True):
            wait_for(lambda gateway=gateway: behind_s(gateway, key) > 2.0, what="being behind")
            before_s = behind_s(gateway, key)
            for method, path, body in (
                ("POST", "/keys", {"tenant": OPERATORS, "scopes": ["metrics"]}),
                ("DELETE", f"/keys/{id_of(key)}", None),
                ("PUT", "/tenants/other", {}),
            ):
                assert administrator.call(method, path, body)[0] == 503
            assert behind_s(gateway, key) > before_s
            status, readiness = administrator.call("GET", "/health/ready")
            assert (status, readiness["state_store"]["is_current"]) == (200, False)
        redis.process.send_signal(signal.SIGCONT)
        for gateway in (first, second):
            wait_for(lambda gateway=gateway: behind_s(gateway, key) == 0.0, what="being up to date")

    assert not any(probe.refused for probe in beside), {probe.name: probe.refused for probe in beside}
    late_s = revoke_beside(probes_at((first, second), key, frontends), administrators[1], key)
    assert max(late_s.values()) <= LATEST_S, late_s
