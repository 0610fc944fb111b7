"""The suite through a gateway whose upstream answers as Triton 26.11 does where that differs (`tests/triton_like`).

Nothing that the gateway sends by itself meets one of the differences, so every case is as with the Triton behind the
stand-in; but for those that ask for what the newer Triton refuses: of those the gateway says what the stand-in says.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.contract.conftest import FORWARDED, LOADED, MODELS
from tests.contract.differences import DIFFERENCES
from tests.contract.grpc.grpc_calls import ADMINISTERING, CALLS, SMALL
from tests.contract.grpc.grpc_streams import STREAMS
from tests.contract.grpc.grpc_wire import DEADLINE_S, Call, Stream, call, channel, talk
from tests.contract.grpc.grpc_wire import summary as grpc_summary
from tests.contract.http import http_extensions, http_messages, http_tensors
from tests.contract.http.http_messages import CHUNKED, INT32
from tests.contract.http.http_wire import TIMEOUT_S, Talk, chunked, hold, request
from tests.contract.http.http_wire import summary as http_summary
from tests.e2e import tidegate as servers
from tests.triton_like import MOST_CHUNKS, NO_SHARED_MEMORY

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("shared_memory")]
LOADS = ("load and unload", "load: with files", "load: a broken model", "load: an unknown model")
"""The cases of loads that are asked here: nothing of the others reaches Triton in another way, and test_http.py has them all."""
LOADS_OVER_GRPC = ("load, infer, unload", "load with a file", "load an unknown model")
TALKS = [
    each
    for each in (*http_messages.TALKS, *http_tensors.TALKS, *http_extensions.TALKS)
    if each.name in LOADS or not each.name.startswith(("load", "unload"))
]
DELIBERATE = {name: expected for cases in DIFFERENCES.values() for name, expected in cases.items()}
Asked = TypeVar("Asked", Call, Stream)
PATIENCE_S = 60.0
RESERVED = ("priority", "Timeout", "timeout", "sequence_id", "headers", "triton_x")


class Site:
    """A real Triton, the stand-in in front of it, and a gateway in front of that."""

    def __init__(self, triton: servers.Tidegate, stand_in: dict[str, int], gateway: servers.Tidegate) -> None:
        self.triton_http, self.triton_grpc = (triton.triton_port(name) for name in ("HTTPService", "GRPCInferenceService"))
        self.stand_in_http, self.stand_in_grpc = stand_in["http"], stand_in["grpc"]
        self.gateway_http, self.gateway_grpc = (gateway.port(name) for name in ("http", "grpc"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("like")
    loads = [part for name in LOADED for part in ("--load", name)]
    unlocked = {"TIDEGATE_LOCK_MODEL_CONTROL": "false"}
    pattern = ("--header-forward-pattern", f"{FORWARDED}|priority|timeout|sequence|headers|triton")
    own = ("--model-repository", str(MODELS), servers.COMPLETE, "--triton-transport", "tcp", "--allow-shared-memory", *pattern, *loads)
    with ExitStack() as ends:
        triton = servers.start(folder / "triton", *own, env=unlocked)
        ends.callback(triton.stop)
        http, grpc_port, metrics = (triton.triton_port(name) for name in ("HTTPService", "GRPCInferenceService", "Metrics Service"))
        upstreams = ("--http-upstream", f"127.0.0.1:{http}", "--grpc-upstream", f"127.0.0.1:{grpc_port}", "--forwards", pattern[1])
        words = [sys.executable, "-m", "tests.triton_like", "--like", "26.11", *upstreams]
        stand_in = ends.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=servers.PROJECT))
        ends.callback(stand_in.kill)
        assert stand_in.stdout is not None
        ports = json.loads(stand_in.stdout.readline())
        url = f"http://127.0.0.1:{ports['http']}?grpc_port={ports['grpc']}&metrics_port={metrics}"
        flags = ("--triton-url", url, "--model-repository", str(MODELS), "--allow-shared-memory", *pattern, *loads)
        gateway = servers.start(folder / "gateway", *flags, env={"TIDEGATE_START_TIMEOUT_S": "240"})
        ends.callback(gateway.stop)
        yield Site(triton, ports, gateway)


def is_affected(name: str) -> bool:
    """Whether the newer Triton answers otherwise: it has no shared memory of clients."""
    return "shared memory" in name


ATTACHED = {
    "load: an unknown model": "500 open",  # of a Triton that others have started the gateway has no log to quote
    "grpc administering: load an unknown model": "INTERNAL 0",
    "grpc metadata: Triton's own names": "OK 1",  # the gateway never sends it, and the pattern of this Triton makes it a parameter
    "shared memory: nothing said": "501 501 500 open",  # what is no JSON goes no further than the gateway
}
EXPECTED = DELIBERATE | ATTACHED


def wrong(name: str, straight: Any, gateway: Any, summary: Callable[[Any], str]) -> str:
    """What is wrong; empty if nothing is."""
    if name in ATTACHED or (name in DELIBERATE and not is_affected(name)):
        return "" if summary(gateway) == EXPECTED[name] else f"{summary(gateway)} instead of {EXPECTED[name]}"
    return "" if gateway == straight else f"{straight} -> {gateway}"


def test_http_is_as_it_was(site: Site) -> None:
    found = {}
    for each in TALKS:
        said = replace(each, patience_s=PATIENCE_S) if each.patience_s == TIMEOUT_S else each
        straight = hold(site.stand_in_http if is_affected(each.name) else site.triton_http, said)
        if what := wrong(each.name, straight, hold(site.gateway_http, said), http_summary):
            found[each.name] = what
    assert not found, "\n".join(f"{name}: {what}" for name, what in found.items())


def test_grpc_is_as_it_was(site: Site) -> None:
    found = {}
    with (
        channel(f"127.0.0.1:{site.triton_grpc}") as triton,
        channel(f"127.0.0.1:{site.stand_in_grpc}") as stand_in,
        channel(f"127.0.0.1:{site.gateway_grpc}") as gateway,
    ):
        cases: list[tuple[str, Callable[[grpc.Channel], Any], Callable[[Any], str]]] = [
            *((each.name, lambda over, each=each: call(over, patient(each)), grpc_summary) for each in CALLS),
            *((each.name, lambda over, each=each: talk(over, patient(each)), grpc_summary) for each in STREAMS),
            *(
                (f"grpc administering: {name}", lambda over, calls=calls: tuple(call(over, patient(each)) for each in calls), summaries)
                for name, calls in ADMINISTERING.items()
                if name in LOADS_OVER_GRPC or not name.startswith(("load", "unload"))
            ),
        ]
        for name, ask, summary in cases:
            if what := wrong(name, ask(stand_in if is_affected(name) else triton), ask(gateway), summary):
                found[name] = what
    assert not found, "\n".join(f"{name}: {what}" for name, what in found.items())


def patient(asked: Asked) -> Asked:
    """The same, with a deadline for a machine that is busy, unless its deadline is what it is about."""
    return replace(asked, timeout_s=PATIENCE_S) if asked.timeout_s == DEADLINE_S else asked


def summaries(outcomes: Any) -> str:
    return ", ".join(map(grpc_summary, outcomes))


def test_shared_memory_is_refused_as_it_says(site: Site) -> None:
    register = request("POST", "/v2/systemsharedmemory/region/part/register", {"key": "/x", "offset": 0, "byte_size": 16})
    for port in (site.stand_in_http, site.gateway_http):
        answer, end = hold(port, Talk("register", (register,)))
        assert not isinstance(answer, str)
        assert (answer.status, json.loads(answer.body), end) == (501, {"error": NO_SHARED_MEMORY}, "open")
    of_grpc = Call("", "SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name="x", key="/x", byte_size=8))
    for address in (site.stand_in_grpc, site.gateway_grpc):
        with channel(f"127.0.0.1:{address}") as over:
            refused = call(over, of_grpc)
        assert (refused.code, refused.details) == ("UNIMPLEMENTED", NO_SHARED_MEMORY)


@pytest.mark.parametrize("name", RESERVED)
def test_a_header_with_a_reserved_name_is_refused_there_and_never_sent_on(site: Site, name: str) -> None:
    """Browsers send `priority` (RFC 9218); whatever the pattern says, the gateway keeps it to itself."""
    asked = Talk("", (INT32_WITH % (name.encode(), len(INT32)) + INT32,))
    straight, through = (http_summary(hold(port, asked)) for port in (site.stand_in_http, site.gateway_http))
    assert (straight, through) == ("200 open" if name == "Timeout" else "400 open", "200 open")
    of_grpc = Call("", "ModelInfer", SMALL, metadata=((name.lower(), "1"),))
    for address, code in ((site.stand_in_grpc, "INVALID_ARGUMENT"), (site.gateway_grpc, "OK")):
        with channel(f"127.0.0.1:{address}") as over:
            assert call(over, of_grpc).code == code


INT32_WITH = b"POST /v2/models/types/infer HTTP/1.1\r\nHost: localhost\r\n%b: 1\r\nContent-Length: %d\r\n\r\n"


def test_a_body_in_many_chunks_is_sent_on_whole(site: Site) -> None:
    padded = INT32 + b" " * (MOST_CHUNKS + 1 - len(INT32))
    asked = Talk("", (CHUNKED + chunked(padded, 1),), patience_s=60.0)
    assert http_summary(hold(site.stand_in_http, asked)).startswith("400")
    assert http_summary(hold(site.gateway_http, asked)) == "200 open"
