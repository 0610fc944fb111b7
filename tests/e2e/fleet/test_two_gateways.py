"""Two gateways before one Triton that neither started, with room for two of four models: one loads, the other asks it to."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import tritonclient.http

from control_plane.admin.client import AdminClient
from tests.e2e import tidegate as servers
from tests.e2e.fleets import BUDGET_BYTES, MIB, answer_of, ask, shown, write_models
from tests.e2e.nodes import NODES, Host, host_on
from tests.e2e.raw_http import status
from tests.e2e.tidegate import Tidegate, wait_for
from tests.redis_server import RedisServer, redis_server

MODELS = ("m0", "m1", "m2", "m3")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory, redis: RedisServer) -> Iterator[tuple[Tidegate, Tidegate, Host]]:
    root = tmp_path_factory.mktemp("two")
    repository = root / "models"
    write_models(repository, MODELS)
    with ExitStack() as ends:

        def start(name: str, *flags: str) -> Tidegate:
            running = servers.start(root / name, *flags)
            ends.callback(running.kill)
            return running

        host = ends.enter_context(host_on(NODES, root / "host", repository))
        flags = ("--triton-url", host.url, *host.flags, "--memory-budget", "50MiB", "--state-url", redis.url)
        yield start("one", *flags), start("other", *flags), host


@contextmanager
def never_beyond_the_budget(triton: Host) -> Iterator[None]:
    done, most = threading.Event(), [0]

    def watch() -> None:
        while not done.wait(0.05):
            most[0] = max(most[0], len(triton.loaded()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert 0 < most[0] * 24 * MIB <= BUDGET_BYTES


def leader_of(*gateways: Tidegate) -> Tidegate:
    (leader,) = [each for each in gateways if each.said().count("leads the fleet, token") > each.said().count("leads the fleet no longer")]
    return leader


def test_every_model_is_served_by_one_or_the_other_and_memory_is_promised_once(gateways: tuple[Tidegate, Tidegate, Host]) -> None:
    one, other, triton = gateways
    with never_beyond_the_budget(triton):
        for number, model in enumerate(MODELS):
            assert answer_of(ask(other if number % 2 else one, model)) == 1 + number


def test_what_either_is_told_to_unload_or_load_is_so_for_both(gateways: tuple[Tidegate, Tidegate, Host]) -> None:
    one, other, triton = gateways
    leader = leader_of(one, other)
    asker = other if leader is one else one
    assert answer_of(ask(leader, "m0")) == 1
    AdminClient(asker.endpoints["admin"]).unload("m0")
    assert not tritonclient.http.InferenceServerClient(triton.address).is_model_ready("m0")
    assert status(ask(asker, "m0")) == 404
    wait_for(lambda: status(ask(leader, "m0")) == 404, what="the leader's refusal")
    assert AdminClient(asker.endpoints["admin"]).load("m0")["state"] == "READY"
    wait_for(lambda: status(ask(leader, "m0")) == 200, what="the leader's answer")
    AdminClient(asker.endpoints["admin"]).unload("m1")


def test_what_the_other_serves_counts_for_the_leader(gateways: tuple[Tidegate, Tidegate, Host]) -> None:
    one, other, _ = gateways
    wait_for(lambda: "leads the fleet, token" in one.said() + other.said(), what="a leader")
    leader = leader_of(one, other)
    asked = other if leader is one else one
    for _ in range(50):
        assert status(ask(asked, "m2")) == 200
    wait_for(lambda: uses_per_s(leader, "m2") > 1, what="what it was told")


def uses_per_s(gateway: Tidegate, model: str) -> float:
    found: float = next(each for each in shown(gateway)["models"] if each["name"] == model)["uses_per_s"]
    return found


def test_after_an_outage_of_redis_the_leader_is_it_again_at_once(gateways: tuple[Tidegate, Tidegate, Host], redis: RedisServer) -> None:
    one, other, _ = gateways
    wait_for(lambda: "leads the fleet, token" in one.said() + other.said(), what="a leader")
    leader = leader_of(one, other)
    begun = leader.said().count("leads the fleet, token")
    redis.process.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: "leads the fleet no longer" in leader.said(), what="the end of its lease")
        time.sleep(3.0)
    finally:
        redis.process.send_signal(signal.SIGCONT)
        back_s = time.monotonic()
    wait_for(lambda: leader.said().count("leads the fleet, token") > begun, what="the same leader")
    assert time.monotonic() - back_s < 4.0


def test_when_the_leader_is_killed_the_other_takes_over(gateways: tuple[Tidegate, Tidegate, Host]) -> None:
    one, other, triton = gateways
    wait_for(lambda: "leads the fleet, token" in one.said() + other.said(), what="a leader")
    leader = leader_of(one, other)
    leader.process.kill()
    leader.process.wait()
    left = other if leader is one else one
    with never_beyond_the_budget(triton):
        for model in ("m0", "m2", "m3"):
            wait_for(lambda model=model: status(ask(left, model)) == 200, what=model)
    assert "leads the fleet, token" in left.said()
    assert status(ask(left, "m1")) == 404, "an administrator has unloaded it"


def known(gateway: Tidegate, what: str) -> dict[str, float]:
    return {model["name"]: model[what] for model in shown(gateway)["models"] if model["name"] in MODELS}


def test_what_was_measured_and_wanted_is_known_to_one_that_starts(gateways: tuple[Tidegate, Tidegate, Host]) -> None:
    left = next(each for each in gateways[:2] if each.process.poll() is None)
    killed = next(each for each in gateways[:2] if each is not left)
    assert isinstance(killed.process.args, list)
    again = servers.start(killed.state_dir, *killed.process.args[killed.process.args.index("--triton-url") :])
    try:
        # A load that has just ended is measured by one of them, and told to the other within seconds.
        wait_for(lambda: known(left, "load_s") == known(again, "load_s"), what="the same times of loads")
        assert 2.0 not in known(again, "load_s").values(), "that of a model that was never loaded"
        assert known(left, "min_replicas") == known(again, "min_replicas") == {name: int(name == "m0") for name in MODELS}
        assert status(ask(again, "m1")) == 404
    finally:
        assert again.stop() == 0, again.said()
