from __future__ import annotations

import pytest

from control_plane.core.errors import ControlPlaneError, ModelLoadFailed, UpstreamUnavailable
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.model import ModelState
from control_plane.models.fleet_fingerprints import FleetFingerprints, ServerFingerprints
from control_plane.models.loaded_contents import LoadedContents
from tests.aio import run
from tests.fakes import FakeUpstream
from tests.fakes.reading import FakeBoard, FakeReading


class Bench:
    def __init__(self) -> None:
        self.board = FakeBoard()
        fleet = FleetFingerprints(self.board)
        self.first, self.second = fleet.of_server("s0"), fleet.of_server("s1")

    def say(self, server: ServerFingerprints, fingerprint: Fingerprint | None) -> None:
        run(server.publish({"m": fingerprint}))

    @property
    def known(self) -> Fingerprint | None:
        return self.board.known.get("m")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def of(contents: bytes) -> Fingerprint:
    """Return a new fingerprint object each time, as each load does."""
    return Fingerprint(contents * 32, True)


def test_what_one_has_is_known(bench: Bench) -> None:
    bench.say(bench.first, fingerprint := of(b"a"))
    assert bench.known is fingerprint


def test_what_all_have_alike_is_known_as_the_newest_object(bench: Bench) -> None:
    """A new object, so that no response computed during the reload is cached."""
    bench.say(bench.first, of(b"a"))
    for server in (bench.second, bench.first, bench.second):
        bench.say(server, newest := of(b"a"))
        assert bench.known is newest


def test_what_two_have_differently_is_unknown_until_they_agree(bench: Bench) -> None:
    bench.say(bench.first, of(b"a"))
    bench.say(bench.second, of(b"b"))
    assert bench.known is None
    bench.say(bench.first, newest := of(b"b"))
    assert bench.known is newest


def test_while_one_is_unsure_it_is_unknown(bench: Bench) -> None:
    bench.say(bench.first, of(b"a"))
    bench.say(bench.second, None)
    assert bench.known is None
    bench.say(bench.first, of(b"a"))
    assert bench.known is None
    bench.say(bench.second, newest := of(b"a"))
    assert bench.known is newest


@pytest.mark.parametrize("last", [None, of(b"b")])
def test_one_that_has_it_no_longer_has_no_say(bench: Bench, last: Fingerprint | None) -> None:
    bench.say(bench.first, fingerprint := of(b"a"))
    bench.say(bench.second, last)
    assert bench.known is None
    run(bench.second.forget(["m", "other"]))
    assert bench.known is not None
    assert bench.known.digest == fingerprint.digest
    assert bench.known is not fingerprint, "who asked before may have been answered by the other"
    run(bench.first.forget(["m"]))
    assert bench.known is None


def test_forgetting_what_nobody_said_tells_nobody(bench: Bench) -> None:
    run(bench.first.forget(["m"]))
    assert not bench.board.published


def test_models_are_apart(bench: Bench) -> None:
    run(bench.first.publish({"m": of(b"a"), "n": of(b"b")}))
    run(bench.second.publish({"n": None}))
    assert bench.board.known.keys() == {"m"}


def test_what_may_be_loaded_elsewhere_in_other_contents_is_unknown_until_it_is_certain_or_gone(bench: Bench) -> None:
    bench.say(bench.first, of(b"a"))
    run(bench.second.make_unknown(["m"]))
    assert bench.known is None
    run(bench.second.forget(["m"]))
    assert bench.known is not None
    run(bench.second.make_unknown(["m"]))
    bench.say(bench.second, newest := of(b"a"))
    assert bench.known is newest


async def _end_by(error: ControlPlaneError, contents: LoadedContents, upstream: FakeUpstream, model: str) -> None:
    async with contents.loading(upstream, model, None):
        raise error


class TestLoads:
    """Changes of one model on two servers, of which the first has it loaded."""

    async def test_whose_contents_are_not_certain_take_what_is_known_of_the_others(self) -> None:
        board, reading, second = await self._first_has_it()

        async with second.loading(FakeUpstream(), "a", None):
            reading.files["a"] = "other weights"
        assert "a" not in board.known

    async def test_that_fail_leave_it_however_often(self) -> None:
        board, _, second = await self._first_has_it()
        for _ in range(2):
            with pytest.raises(ModelLoadFailed):
                await _end_by(ModelLoadFailed("its weights are cut short"), second, FakeUpstream(), "a")
            assert "a" in board.known

    async def test_that_fail_leave_it_unknown_where_triton_has_loaded_it_as_a_step(self) -> None:
        board, reading, second = await self._first_has_it()
        reading.files["e"], reading.steps["e"] = "first", ["a"]
        upstream = FakeUpstream()
        upstream.control.states["a"] = ModelState.READY
        with pytest.raises(ModelLoadFailed):
            await _end_by(ModelLoadFailed("the ensemble's own configuration is wrong"), second, upstream, "e")
        assert "a" not in board.known

    async def test_during_which_triton_ends_leave_it_once_there_is_another(self) -> None:
        board, _, second = await self._first_has_it()
        with pytest.raises(UpstreamUnavailable):
            await _end_by(UpstreamUnavailable("Triton has ended"), second, FakeUpstream(), "a")
        assert "a" not in board.known, "it may have been loaded"
        await second.restart(FakeUpstream())
        assert "a" in board.known

    async def _first_has_it(self) -> tuple[FakeBoard, FakeReading, LoadedContents]:
        board, reading, upstream = FakeBoard(), FakeReading({"a": "weights"}), FakeUpstream()
        fleet = FleetFingerprints(board)
        first, second = (LoadedContents(reading, fleet.of_server(name)) for name in ("s0", "s1"))
        await first.restart(upstream)
        await second.restart(FakeUpstream())
        async with first.loading(upstream, "a", None):
            await upstream.control.load("a", timeout_s=1.0)
        assert "a" in board.known
        return board, reading, second


def test_of_a_server_whose_models_are_all_gone_nothing_stays(bench: Bench) -> None:
    bench.say(bench.first, of(b"a"))
    run(bench.first.forget(["m"]))
    assert not bench.first._fleet._known
    bench.say(bench.first, of(b"a"))
    assert bench.known is not None
