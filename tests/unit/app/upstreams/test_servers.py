from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from control_plane.app.upstreams.servers import Tritons
from control_plane.app.upstreams.triton_instances import Restore, TritonInstance
from control_plane.core.errors import StartupError
from control_plane.fleet.administration import FleetModels
from control_plane.inference.domain.queries_of_death import Finding, Record, Verdict
from control_plane.models.fingerprints import Fingerprints
from control_plane.models.model_service import LoadFailure, ModelService
from control_plane.settings import load_settings
from control_plane.triton.ports import Upstream
from control_plane.triton.supervisor import Supervisor
from tests.fakes import FakeUpstream

TWO = "http://127.0.0.1:1,http://127.0.0.1:11"


@pytest.fixture(autouse=True)
def loop() -> Iterator[None]:
    """Set a current event loop, which grpc.aio needs to make a channel, whatever earlier tests have left."""
    current = asyncio.new_event_loop()
    asyncio.set_event_loop(current)
    yield
    asyncio.set_event_loop(None)
    current.close()


def tritons(tmp_path: Path, **given: Any) -> Tritons:
    (tmp_path / "models").mkdir(exist_ok=True)
    settings = load_settings({"model_repository": [tmp_path / "models"], "state_dir": tmp_path / "state", **given})
    fingerprints = Fingerprints()
    return Tritons(settings, fingerprints, fingerprints)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        pytest.param({}, ["triton"], id="one"),
        pytest.param({"servers": 3}, ["triton-0", "triton-1", "triton-2"], id="several"),
        pytest.param({"memory_budget": "1GiB"}, ["triton"], id="one-with-a-budget"),
        pytest.param({"triton_url": "http://127.0.0.1:1"}, ["triton"], id="one-of-others"),
        pytest.param({"triton_url": TWO}, ["triton-0", "triton-1"], id="several-of-others"),
    ],
)
def test_servers_have_names(tmp_path: Path, given: dict[str, Any], names: list[str]) -> None:
    assert list(tritons(tmp_path, **given).servers.members) == names


def of_file(tmp_path: Path, text: str, **given: Any) -> Tritons:
    (tmp_path / "servers.yaml").write_text(text)
    return tritons(tmp_path, servers_file=tmp_path / "servers.yaml", **given)


class TestServersFile:
    def test_its_entries_are_servers_with_what_they_say(self, tmp_path: Path) -> None:
        text = "- {url: 'http://h:1', name: a, pool: long, labels: {zone: x}, memory_budget: 2GiB}\n- url: http://h:11"
        several = of_file(tmp_path, text, memory_budget="1GiB")
        assert list(several.servers.members) == ["a", "h:11"]
        assert several.fleet is not None
        first, second = several.fleet.state.fleet.servers.values()
        assert (first.pool, first.labels, first.budget_bytes) == ("long", {"zone": "x"}, 2 * 2**30)
        assert (second.pool, second.labels, second.budget_bytes) == ("", {}, 2**30)
        assert not any(each.is_up for each in (first, second))

    def test_one_server_of_a_file_is_a_fleet_which_may_grow(self, tmp_path: Path) -> None:
        one = of_file(tmp_path, "- url: http://h:1")
        assert isinstance(one.models, FleetModels)

    async def test_with_none_of_its_servers_up_there_is_no_start_and_with_one_the_others_are_waited_for(self, tmp_path: Path) -> None:
        several = of_file(tmp_path, "- url: http://127.0.0.1:1\n- url: http://127.0.0.1:11", start_timeout_s=0.3)
        with pytest.raises(ExceptionGroup) as caught:
            await several.run()
        assert caught.group_contains(StartupError, match=r"no server of --servers-file .* answered within 0\.3 s")
        assert not caught.group_contains(StartupError, match="--triton-url")
        several = of_file(tmp_path, "- url: http://127.0.0.1:1\n- url: http://127.0.0.1:11", start_timeout_s=0.3)
        several.servers.members["127.0.0.1:1"].up(FakeUpstream())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(several.run(), 1.0)

    def test_one_with_faults_is_no_start(self, tmp_path: Path) -> None:
        with pytest.raises(StartupError, match=r"--servers-file .*servers\.yaml: entry 1: url is missing"):
            of_file(tmp_path, "- name: a")

    @pytest.mark.parametrize(
        ("given", "reason"),
        [
            ({"triton_url": TWO}, "--servers-file lists all servers of a fleet; leave --triton-url out"),
            ({"servers": 2}, "leave --servers out"),
            ({"pools": "a"}, "--pools is for embedded Tritons"),
            ({"model_parameter": "a:b=c"}, "--model-parameter is for the embedded Triton"),
        ],
    )
    def test_what_goes_without_it_does_not_go_with_it(self, tmp_path: Path, given: dict[str, Any], reason: str) -> None:
        with pytest.raises(StartupError, match=reason):
            of_file(tmp_path, "- url: http://h:1", **given)


class TestPools:
    def test_of_embedded_servers_are_named_in_their_order(self, tmp_path: Path) -> None:
        several = tritons(tmp_path, servers=3, pools="short,short,long")
        assert several.fleet is not None
        assert [each.pool for each in several.fleet.state.fleet.servers.values()] == ["short", "short", "long"]

    def test_of_others_are_named_with_their_urls(self, tmp_path: Path) -> None:
        several = tritons(tmp_path, triton_url="http://h:1?pool=short,http://h:11")
        assert several.fleet is not None
        assert [each.pool for each in several.fleet.state.fleet.servers.values()] == ["short", ""]

    @pytest.mark.parametrize(
        ("given", "reason"),
        [
            ({"servers": 3, "pools": "short,long"}, "--pools names 2 for 3 of --servers; name one for each"),
            ({"pools": "short,long"}, "--pools names 2 for 1 of --servers"),
            ({"triton_url": TWO, "pools": "short,long"}, r"--pools is for embedded Tritons; .*\?pool=NAME"),
        ],
    )
    def test_are_one_for_each(self, tmp_path: Path, given: dict[str, Any], reason: str) -> None:
        with pytest.raises(StartupError, match=reason):
            tritons(tmp_path, **given)


class TestFleetName:
    """The fleet's name, by which gateways find the same leader election."""

    def test_it_is_the_same_however_the_same_servers_are_named_in_order(self, tmp_path: Path) -> None:
        there, back = (tritons(tmp_path, triton_url=urls) for urls in (TWO, ",".join(reversed(TWO.split(",")))))
        assert there.fleet_name == back.fleet_name
        assert there.fleet_name != tritons(tmp_path, triton_url=f"{TWO},http://127.0.0.1:21").fleet_name

    def test_a_files_stays_while_servers_come_and_go(self, tmp_path: Path) -> None:
        one = of_file(tmp_path, "- url: http://h:1")
        assert one.fleet_name == of_file(tmp_path, "- url: http://h:11").fleet_name == "default"

    @pytest.mark.parametrize(("state_url", "told"), [("redis://127.0.0.1:1", 1), (None, 0)])
    def test_it_is_told_where_others_may_share_it(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, state_url: str | None, told: int
    ) -> None:
        with caplog.at_level(logging.INFO, "control_plane.app.upstreams.servers"):
            one = tritons(tmp_path, triton_url=TWO, state_url=state_url)
        assert caplog.text.count(f"belongs to fleet '{one.fleet_name}'") == told

    def test_it_can_be_given(self, tmp_path: Path) -> None:
        assert of_file(tmp_path, "- url: http://h:1", fleet_name="mine").fleet_name == "mine"
        assert tritons(tmp_path, triton_url=TWO, fleet_name="mine").fleet_name == "mine"


async def test_a_restart_of_one_server_says_nothing_of_what_another_could_not_load(tmp_path: Path) -> None:
    failures: dict[str, list[LoadFailure]] = {}
    first, second = (Restore(name, ModelRestorer(name), failures) for name in ("s0", "s1"))
    await first(FakeUpstream())
    await second(FakeUpstream())
    assert failures == {"s0": [LoadFailure("a", "not on s0")], "s1": [LoadFailure("a", "not on s1")]}
    await first(FakeUpstream())
    assert failures["s1"] == [LoadFailure("a", "not on s1")]


@dataclass
class ModelRestorer:
    name: str

    async def restore(self, upstream: Upstream) -> list[LoadFailure]:
        return [LoadFailure("a", f"not on {self.name}")]


def test_one_without_a_budget_is_no_fleet(tmp_path: Path) -> None:
    one = tritons(tmp_path)
    assert one.fleet is None
    assert isinstance(one.models, ModelService)


@pytest.mark.parametrize("given", [{"servers": 2}, {"memory_budget": "1GiB"}])
def test_more_or_a_budget_is(tmp_path: Path, given: dict[str, Any]) -> None:
    several = tritons(tmp_path, **given)
    assert several.fleet is not None
    assert isinstance(several.models, FleetModels)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"servers": 2, "triton_url": "http://127.0.0.1:1"}, "--servers is for embedded Tritons"),
        ({"model_parameter": "a:b=c", "triton_url": "http://127.0.0.1:1"}, "--model-parameter is for the embedded Triton"),
        ({"triton_user": "nobody", "triton_url": "http://127.0.0.1:1"}, "--triton-user is for the embedded Triton"),
        ({"triton_arg": "--rate-limit=off", "triton_url": "http://127.0.0.1:1"}, "--triton-arg is for the embedded Triton"),
        ({"triton_url": "http://127.0.0.1:1,http://127.0.0.1:1"}, "names a Triton twice"),
        ({"kubernetes_lease": "tidegate"}, "--kubernetes-lease is for a fleet that gateways share"),
        ({"kubernetes_lease": "tidegate", "triton_url": TWO}, "give --state-url, too"),
        (
            {"kubernetes_lease": "tidegate", "triton_url": TWO, "state_url": "redis://127.0.0.1:1"},
            "--kubernetes-lease asks the Kubernetes API server, and this is not running in a pod",
        ),
        ({"model_store": ["s3://key:secret@bucket/models"]}, "leave credentials"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(StartupError, match=reason) as refused:
        tritons(tmp_path, **given)
    assert "secret" not in str(refused.value)


GUILTY, SUSPECT = (Record(("triton-0", "triton-1"), 60.0, verdict) for verdict in (Verdict.GUILTY, Verdict.SUSPECT))


@pytest.mark.parametrize(
    ("record", "explained"),
    [
        pytest.param(GUILTY, [("triton-0", "a"), ("triton-1", "a")], id="guilty"),
        pytest.param(SUSPECT, [], id="suspect"),
        pytest.param(None, [], id="innocent"),
    ],
)
def test_a_fleet_hears_which_deaths_have_a_known_cause(tmp_path: Path, record: Record | None, explained: list[tuple[str, str]]) -> None:
    made, heard = tritons(tmp_path, servers=2), list[tuple[str, str]]()
    assert made.fleet is not None
    made.fleet.router.explain_death = lambda server, model: heard.append((server, model))  # type: ignore[method-assign]
    made.found_out(Finding(("a", b"digest"), record))
    assert heard == explained


def test_an_only_triton_hears_which_deaths_have_a_known_cause(tmp_path: Path) -> None:
    made, heard = tritons(tmp_path), list[str]()
    made.units = [replace(unit, explain_death=heard.append) for unit in made.units]
    made.found_out(Finding(("a", b"digest"), replace(GUILTY, deaths=("triton", "triton"))))
    assert heard == ["a", "a"]


@pytest.mark.parametrize(("is_stub", "times"), [(False, 2), (True, 0)])
def test_its_supervisor_hears_of_its_own_ends(tmp_path: Path, is_stub: bool, times: int) -> None:
    made, heard = tritons(tmp_path), list[str]()
    (unit,) = made.units
    assert isinstance(unit, TritonInstance)
    assert isinstance(unit.triton, Supervisor)
    unit.triton.explain_death = lambda: heard.append("end")  # type: ignore[method-assign]
    made.found_out(Finding(("a", b"digest"), replace(GUILTY, deaths=("triton", "triton")), is_stub))
    assert heard == ["end"] * times
