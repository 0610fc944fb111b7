from __future__ import annotations

import logging

import pytest

from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import ControlPlaneError, UpstreamUnavailable
from control_plane.frontends.common.http_errors import render_error
from control_plane.frontends.metrics_page import MetricsPage
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.triton.servers import Servers
from tests.aio import run
from tests.fakes import FakeUpstream
from tests.fakes.governance import api_key, governance, key_text, known_state

OWN = b"tidegate_triton_up 1\n"


def own() -> Steps[bytes]:
    yield
    return OWN


def ask(upstream: FakeUpstream | None, method: bytes = b"GET", target: bytes = b"/metrics") -> HttpAnswer:
    servers = Servers()
    if upstream is not None:
        servers.up(upstream)
    return run(MetricsPage(render_own=own, servers=servers, access=governance().access).answer(HttpRequest(method, target)))


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@pytest.mark.parametrize("target", [b"/metrics", b"/metrics?name[]=x"])
def test_our_own_then_tritons(method: bytes, target: bytes) -> None:
    answer = ask(FakeUpstream(metrics=b"nv_inference_count 7\n"), method, target)
    assert (answer.status, answer.body) == (200, OWN + b"nv_inference_count 7\n")
    assert b"\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in answer.head


@pytest.mark.parametrize("upstream", [None, FakeUpstream(metrics=UpstreamUnavailable("refused"))], ids=["no triton", "triton fails"])
def test_without_tritons_part_ours_is_still_there(upstream: FakeUpstream | None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        answer = ask(upstream)
    assert (answer.status, answer.body) == (200, OWN)
    assert "Triton's metrics are missing" in caplog.text


def test_what_is_not_in_memory_is_read_before_each_page() -> None:
    read: list[str] = []

    async def reads() -> None:
        read.append("read")

    def counted() -> Steps[bytes]:
        yield
        return f"tidegate_jobs {len(read)}\n".encode()

    page = MetricsPage(render_own=counted, servers=Servers(), access=governance().access, read=reads)
    assert [run(page.answer(HttpRequest(b"GET", b"/metrics"))).body for _ in range(2)] == [b"tidegate_jobs 1\n", b"tidegate_jobs 2\n"]
    assert run(page.answer(HttpRequest(b"GET", b"/else"))).status == 404
    assert len(read) == 2


def test_in_a_fleet_labels_stay_when_all_servers_but_one_are_gone() -> None:
    servers = Servers(None, ("s0", "s1"))
    page = MetricsPage(render_own=own, servers=servers, access=governance().access)
    for name, metrics in (("s0", b"nv_power 7\n"), ("s1", UpstreamUnavailable("refused"))):
        servers.members[name].up(FakeUpstream(metrics=metrics))
    request = HttpRequest(b"GET", b"/metrics")
    assert run(page.answer(request)).body == OWN + b'nv_power{server="s0"} 7\n'
    servers.members["s1"].up(FakeUpstream(metrics=b"nv_power 8\n"))
    servers.members["s1"].fell_silent()
    assert run(page.answer(request)).body == OWN + b'nv_power{server="s0"} 7\n', "nobody waits for one that is silent"
    servers.members["s1"].down("it has crashed")
    assert run(page.answer(request)).body == OWN + b'nv_power{server="s0"} 7\n'
    servers.members["s0"].down("it has crashed")
    assert run(page.answer(request)).body == OWN


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        (b"GET", b"/", 404),
        (b"GET", b"/metrics/", 404),
        (b"GET", b"/v2/health/live", 404),
        (b"POST", b"/metrics", 405),
        (b"DELETE", b"/x", 404),
    ],
)
def test_another_path_or_method_is_refused(method: bytes, target: bytes, status: int) -> None:
    assert ask(FakeUpstream(), method, target).status == status


@pytest.mark.parametrize(
    ("key", "status"),
    [
        pytest.param(None, 401, id="no-key"),
        pytest.param(key_text(9), 401, id="unknown"),
        pytest.param(key_text(2), 403, id="another-right"),
        pytest.param(key_text(1), 200, id="metrics"),
        pytest.param(key_text(3), 200, id="admin"),
    ],
)
def test_with_authentication_the_page_needs_its_scope(key: str | None, status: int) -> None:
    keys = (api_key(1, "metrics"), api_key(2, "infer:*", "repository"), api_key(3, "admin"))
    access = governance(known_state(keys=keys, tenants=(Tenant("team"),)), authentication=True).access
    headers = [] if key is None else [(b"X-Api-Key", key.encode())]

    try:
        answer = run(MetricsPage(render_own=own, servers=Servers(), access=access).answer(HttpRequest(b"GET", b"/metrics", headers)))
    except ControlPlaneError as error:
        answer = render_error(error)

    assert answer.status == status
    assert (OWN in answer.body) is (status == 200)
