"""Two regions: requests stay where they came while they can be answered there, and go to the other one where they cannot.

The tests share their gateways, and go from what harms nobody to what ends a Triton. The model computes one request after the
other, and takes as long as it is told to.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tritonclient.grpc as grpcclient

from control_plane.core.endpoints import TcpAddress, UpstreamCredentials
from control_plane.core.errors import UpstreamUnavailable
from control_plane.regions.adapters.region_client import RegionClient
from control_plane.regions.domain.region import Region
from perf.chaos.models import embedded_number
from tests.e2e.regions.regions import (
    ADMIN,
    AGAIN,
    Answered,
    Two,
    ask,
    ask_at_rate,
    ask_once,
    embed_bytes,
    infer_bytes,
    is_well,
    metric,
    sent,
    start_two,
)
from tests.e2e.tidegate import LONG_S, Tidegate, command_line, descendants, run_cli, wait_for
from tests.tls_files import Authority, needs_openssl

pytestmark = [needs_openssl, pytest.mark.timeout(300)]

STEP_S = 0.02
"""What one request takes: fifty in a second."""
SLOT_COUNT, HELD_S = 3, 1.2
"""Slots of the model in each region, and for how long a request holds one, one after the other."""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    both = start_two(tmp_path_factory.mktemp("regions"))
    try:
        wait_for(lambda: is_well(both, "here") and is_well(both, "there"), what="each finds the other well")
        for at in ("here", "there"):  # what a request takes is known before the model is overloaded
            asyncio.run(ask_at_rate(both, at, infer_bytes(both.keys["ordinary"], STEP_S), per_s=40, seconds=1))
        yield both
    finally:
        both.here.kill()
        both.there.kill()


def triton_of(gateway: Tidegate) -> int:
    return next(pid for pid in descendants(gateway.process.pid) if b"tritonserver" in command_line(pid).split(b"\0")[0])


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def busy(two: Two, at: str) -> Iterator[None]:
    """A region all of whose slots are taken for three seconds, so that others wait for their turn."""

    async def hold() -> None:
        data = infer_bytes(two.keys["ordinary"], HELD_S, timeout_ms=20_000)
        await asyncio.gather(*(ask(two, at, data, Answered()) for _ in range(SLOT_COUNT)))

    holding = threading.Thread(target=lambda: asyncio.run(hold()))
    holding.start()
    running = "tidegate_requests_in_flight"
    wait_for(lambda: metric(two, at, running) >= SLOT_COUNT, what="all slots are taken")
    try:
        yield
    finally:
        holding.join()


def await_room(two: Two) -> None:
    """Wait until the other region has room again, after what tests before have left there."""
    wait_for(lambda: ask_once(two, "here", _echo_bytes(two.keys["ordinary"])).by == {"there": 1}, what="there is room there")


def test_at_low_load_no_request_leaves(two: Two) -> None:
    before = sent(two)
    answered = asyncio.run(ask_at_rate(two, "here", infer_bytes(two.keys["ordinary"], STEP_S), per_s=10, seconds=2))
    assert answered.by == {"here": 20}
    assert sent(two) == before


def test_what_is_too_much_here_is_computed_there_and_nobody_of_there_is_refused(two: Two) -> None:
    key = two.keys["ordinary"]

    async def overload() -> tuple[Answered, Answered]:
        too_much = ask_at_rate(two, "here", infer_bytes(key, STEP_S), per_s=150, seconds=3)
        theirs = ask_at_rate(two, "there", infer_bytes(key, STEP_S), per_s=5, seconds=3)
        return await asyncio.gather(too_much, theirs)

    spilled, theirs = asyncio.run(overload())
    assert theirs.by == {"here": 15}, "all of those who asked there were answered, and by that region itself"
    assert spilled.by["there"] > 20, spilled.by
    assert spilled.by["here"] > 2 * 40, spilled.by
    assert set(spilled.by) <= {"here", "there", "503", "504"}


def test_the_log_of_here_names_the_region_and_usage_is_counted_there(two: Two) -> None:
    log = two.here.state_dir.parent / "requests.jsonl"
    lines: list[dict[str, object]] = []

    def is_logged() -> bool:
        lines[:] = [json.loads(line) for line in log.read_text().splitlines()]
        return any(line["server"] == "region:there" for line in lines)

    wait_for(is_logged, what="a line of a request that was computed there")
    listed = run_cli("regions", "--state-dir", str(two.here.state_dir), "-o", "json", env={"TIDEGATE_API_KEY": two.keys[ADMIN]})
    (found,) = json.loads(listed.stdout)
    assert (found["name"], found["is_well"]) == ("there", True)
    assert found["answered"] >= sum(line["server"] == "region:there" for line in lines) > 0


def test_over_grpc_too(two: Two) -> None:
    await_room(two)
    with busy(two, "here"), grpcclient.InferenceServerClient(two.here.address("grpc")) as client:
        (seconds := grpcclient.InferInput("SECONDS", [1, 1], "FP32")).set_data_from_numpy(_array(STEP_S))
        headers = {"x-api-key": two.keys["ordinary"]}
        before = sent(two)
        answer = client.infer("slow", [seconds], client_timeout=1.0, headers=headers)
        assert answer.as_numpy("SLEPT").tolist() == [[pytest.approx(STEP_S)]]
        assert sent(two) == before + 1


def test_a_model_that_is_there_only_is_computed_there_and_one_that_is_nowhere_is_not_found(two: Two) -> None:
    await_room(two)
    before = metric(two, "there", "tidegate_region_guests_total")
    missing = [ask_once(two, "here", infer_bytes(two.keys["ordinary"], STEP_S, model="nowhere")).by for _ in range(5)]
    assert missing == [{"404": 1}] * 5
    assert metric(two, "there", "tidegate_region_guests_total") <= before + 1, "its absence is remembered"


def test_so_are_embeddings_by_openais_api(two: Two) -> None:
    await_room(two)
    answered = Answered()

    def is_found() -> bool:  # other regions are asked seldom for models that nobody has heard of
        nonlocal answered
        answered = ask_once(two, "here", embed_bytes(two.keys["ordinary"], 7.0))
        return answered.by == {"there": 1}

    wait_for(is_found, what="it is asked for there")
    assert embedded_number(answered.texts[0].encode()) == 7.0
    resident = ask_once(two, "here", embed_bytes(two.keys["resident"], 7.0))
    assert resident.by == {"404": 1}, resident.texts


@pytest.mark.parametrize(
    ("path", "call", "said"),
    [
        ("/v1/completions", {"prompt": "a b", "stream": True}, "data: [DONE]"),
        ("/v1/completions", {"prompt": "a b"}, '"text":"a b"'),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b"}], "stream": True}, "data: [DONE]"),
        ("/v2/models/parrot/generate_stream", {"text_input": "a b", "stream": True, "exclude_input_in_output": True}, '"text_output":" b"'),
    ],
)
def test_so_is_generated_text_whole_and_in_pieces(two: Two, path: str, call: dict[str, object], said: str) -> None:
    def ask_for_text(tenant: str) -> tuple[int, str | None, str]:
        connection = http.client.HTTPConnection("127.0.0.1", two.port("here"), timeout=LONG_S)
        connection.request("POST", path, json.dumps({"model": "parrot"} | call if "v1" in path else call), {"x-api-key": two.keys[tenant]})
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, answer.headers["tidegate-region"], body

    await_room(two)
    found: list[tuple[int, str | None, str]] = []

    def is_found() -> bool:  # other regions are asked seldom for models that nobody has heard of
        found[:] = [ask_for_text("ordinary")]
        return found[0][0] == 200

    wait_for(is_found, what="it is asked for there")
    assert found[0][1] == "there"
    assert said in found[0][2]
    assert ask_for_text("resident")[0] == 404


@pytest.mark.parametrize("tenant", ["resident", "stranger"])
def test_who_may_not_leave_and_who_is_unknown_there_is_refused_here(two: Two, tenant: str) -> None:
    unauthenticated = 'tidegate_region_requests_total{region="there",result="unauthenticated"}'
    await_room(two)
    before, asked = metric(two, "here", unauthenticated), sent(two)
    with busy(two, "here"):
        data = infer_bytes(two.keys[tenant], STEP_S, timeout_ms=500)
        refused = [ask_once(two, "here", data), asyncio.run(ask_at_rate(two, "here", data, per_s=20, seconds=0.1))]
        assert [each.by for each in refused] == [{"503": 1}, {"503": 2}]
        assert all("too busy to answer" in text for each in refused for text in each.texts), "it is what this region says"
        tried = 1 if tenant == "stranger" else 0
        assert sent(two) == asked + tried
        others = infer_bytes(two.keys["ordinary"], STEP_S)
        wait_for(lambda: ask_once(two, "here", others).by == {"there": 1}, what="others leave all the while")
    assert metric(two, "here", unauthenticated) == before + tried, "its key is tried once, and then left alone"


def test_what_a_tenants_rate_refuses_is_refused(two: Two) -> None:
    before = sent(two)
    with busy(two, "here"):
        answered = asyncio.run(ask_at_rate(two, "here", infer_bytes(two.keys["limited"], STEP_S), per_s=100, seconds=0.03))
    assert answered.by["429"] >= 2, answered.by
    assert sent(two) <= before + 1


def test_a_forged_hop_only_keeps_a_request_here(two: Two) -> None:
    forged = infer_bytes(two.keys["ordinary"], STEP_S, fields=("tidegate-hop: there",))
    wait_for(lambda: ask_once(two, "here", forged).by == {"here": 1}, what="there is idle room")
    before = sent(two)
    with busy(two, "here"):
        refused = ask_once(two, "here", forged)
    assert refused.by == {"503": 1}
    assert "other regions" in refused.texts[0]
    assert refused.took_s[0] < 0.5, "it never waits"
    assert sent(two) == before


def test_two_full_regions_refuse_as_they_would_alone_and_hardly_ask_each_other(two: Two) -> None:
    key, seconds = two.keys["ordinary"], 3
    before = sent(two, "here") + sent(two, "there")

    async def overload() -> list[Answered]:
        return await asyncio.gather(
            *(ask_at_rate(two, at, infer_bytes(key, STEP_S), per_s=120, seconds=seconds) for at in ("here", "there"))
        )

    answered = asyncio.run(overload())
    for each in answered:
        assert each.by["503"] > 0
        assert each.by["here"] > 20 * seconds
    asked = sent(two, "here") + sent(two, "there") - before
    assert asked <= 0.1 * 240 * seconds, f"{asked} of {240 * seconds} requests were sent on"


def test_a_frozen_region_costs_nobody_more_than_a_bounded_wait(two: Two) -> None:
    key = two.keys["ordinary"]

    async def overload() -> Answered:
        return await ask_at_rate(two, "here", infer_bytes(key, STEP_S, timeout_ms=8000), per_s=25, seconds=3)

    with busy(two, "here"), frozen(two.there.process.pid):
        began_s = time.monotonic()
        wait_for(lambda: not is_well(two), timeout_s=20, what="its silence is noticed")
        assert time.monotonic() - began_s < 5, "two seconds, on a quiet machine"
        answered = asyncio.run(overload())
        assert set(answered.by) <= {"here", "503"}, "as it would be alone"
        assert max(answered.took_s) < 9.0
    wait_for(lambda: is_well(two), what="it is well again")


def test_requests_at_a_region_that_freezes_are_given_up_on(two: Two) -> None:
    key = two.keys["ordinary"]

    async def spill() -> Answered:
        answered = Answered()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask(two, "here", infer_bytes(key, 2.0, timeout_ms=2500), answered))
            await asyncio.sleep(0.5)
            os.kill(two.there.process.pid, signal.SIGSTOP)
        return answered

    wait_for(lambda: metric(two, "there", "tidegate_requests_in_flight") == 0, what="nothing is there")
    with busy(two, "here"):
        try:
            answered = asyncio.run(spill())
        finally:
            os.kill(two.there.process.pid, signal.SIGCONT)
    assert set(answered.by) <= {"503", "504"}, "it may have been computed there: nobody computes it once more"
    wait_for(lambda: is_well(two), what="it is well again")


def test_while_the_only_triton_is_frozen_requests_are_computed_there(two: Two) -> None:
    key = two.keys["ordinary"]

    async def freeze_under() -> tuple[Answered, Answered]:
        under_way, later = Answered(), Answered()
        repeatable = infer_bytes(key, 0.6, model=AGAIN, timeout_ms=20_000)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask(two, "here", repeatable, under_way))
            await asyncio.sleep(0.3)
            os.kill(triton, signal.SIGSTOP)
        await ask(two, "here", infer_bytes(key, STEP_S, timeout_ms=5000), later)
        return under_way, later

    triton = triton_of(two.here)
    try:
        under_way, later = asyncio.run(freeze_under())
    finally:
        os.kill(triton, signal.SIGCONT)
    assert under_way.by == {"there": 1}, "what may be computed twice was taken back"
    assert later.by == {"there": 1}
    wait_for(lambda: ask_once(two, "here", infer_bytes(key, STEP_S)).by == {"here": 1}, what="requests stay again")


def test_what_there_has_no_room_for_while_the_only_triton_is_frozen_is_computed_there_once_there_is_some(two: Two) -> None:
    again = infer_bytes(two.keys["ordinary"], STEP_S, model=AGAIN, timeout_ms=30_000)
    refused = 'tidegate_region_requests_total{region="there",result="full"}'
    before = metric(two, "here", refused)
    with frozen(triton_of(two.here)):
        wait_for(lambda: ask_once(two, "here", again).by == {"there": 1}, what="the silence is noticed")
        with busy(two, "there"):
            answered = ask_once(two, "here", again)
    assert answered.by == {"there": 1}
    assert metric(two, "here", refused) > before, "it was refused there at first"
    wait_for(lambda: ask_once(two, "here", again).by == {"here": 1}, what="requests stay again")


def test_while_the_only_triton_is_dead_requests_are_computed_there(two: Two) -> None:
    key = two.keys["ordinary"]
    os.kill(triton_of(two.here), signal.SIGKILL)
    data = infer_bytes(key, STEP_S, timeout_ms=3000)
    wait_for(lambda: ask_once(two, "here", data).by == {"there": 1}, what="its end is noticed")
    found = asyncio.run(ask_at_rate(two, "here", data, per_s=10, seconds=1))
    assert found.successes == 10, found.by
    assert found.by["there"] >= 5, found.by
    wait_for(lambda: ask_once(two, "here", infer_bytes(key, STEP_S)).by == {"here": 1}, what="requests stay again")


def test_a_region_whose_certificate_nobody_vouches_for_gets_nothing(two: Two, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")

    async def probe(credentials: UpstreamCredentials | None) -> None:
        http = TcpAddress("127.0.0.1", two.there.port("http"), credentials)
        client = RegionClient(
            "here", Region("there", http, TcpAddress("127.0.0.1", two.there.port("grpc"), credentials)), forwards="", max_answer_bytes=2**20
        )
        try:
            await client.probe(timeout_s=5.0)
        finally:
            await client.close()

    asyncio.run(probe(UpstreamCredentials(ca=str(two.authority.certificate))))
    for credentials in (UpstreamCredentials(ca=str(other.certificate)), UpstreamCredentials(), None):
        with pytest.raises(UpstreamUnavailable):
            asyncio.run(probe(credentials))


def _echo_bytes(key: str) -> bytes:
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]})
    head = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\nx-api-key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def _array(seconds: float) -> object:
    import numpy as np

    return np.array([[seconds]], dtype=np.float32)
