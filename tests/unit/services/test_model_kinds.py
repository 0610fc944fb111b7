from __future__ import annotations

from control_plane.services.model_kinds import ModelKinds
from control_plane.services.servers import OneServer, Servers
from tests.aio import run
from tests.fakes import FakeUpstream


class Bench:
    def __init__(self) -> None:
        self.servers, self.upstream, self.now_s = Servers(), FakeUpstream(), 0.0
        self.servers.up(self.upstream)
        self.upstream.control.decoupled = {"many": True, "one": False}
        self.kinds = ModelKinds(OneServer(self.servers), now_s=lambda: self.now_s)

    def asks(self, name: str) -> bool:
        return run(self.kinds.is_decoupled(name))


def test_triton_is_asked_once_in_a_while() -> None:
    bench = Bench()
    assert [bench.asks(name) for name in ("many", "one", "many", "one")] == [True, False, True, False]
    assert bench.upstream.control.kinds_asked == ["many", "one"]
    bench.upstream.control.decoupled = {"many": False, "one": True}
    bench.now_s = 1.9
    assert (bench.asks("many"), bench.asks("one")) == (True, False)
    bench.now_s = 2.1
    assert (bench.asks("many"), bench.asks("one")) == (False, True)


def test_of_what_it_does_not_know_nothing_is_kept() -> None:
    bench = Bench()
    assert not bench.asks("new")
    bench.upstream.control.decoupled["new"] = True
    assert bench.asks("new")


def test_without_a_server_it_is_no() -> None:
    bench = Bench()
    bench.servers.down("starting")
    assert not bench.asks("many")
