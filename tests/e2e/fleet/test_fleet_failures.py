"""A fleet full of models that serve, and models that cannot be loaded: who asks is told why, and what serves stays."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.admin.client import AdminClient
from control_plane.core.errors import InvalidRequest
from tests.e2e.fleets import answer_of, ask, counted, events, loaded, write_models
from tests.e2e.loads import bad_models
from tests.e2e.nodes import EMBEDDED, NODES, fleet_on
from tests.e2e.processes import triton_of
from tests.e2e.raw_http import status
from tests.e2e.tidegate import COMPLETE, Tidegate, run_cli, wait_for

pytestmark = pytest.mark.timeout(300)

GOOD = ("m0", "m1", "m2", "m3")
"""As many as there is room for."""
LIMIT_S = 12.0
"""Time-out of a load, for one that hangs."""

_SIZE = 'parameters { key: "tidegate_resident_bytes" value { string_value: "24MiB" } }\n'
_CUT = b"\x08\x09\x3a\xe8\x07" + b"graph"

beside_the_gateway = pytest.mark.parametrize("place", [EMBEDDED], indirect=True)
on_nodes = pytest.mark.parametrize("place", [NODES], indirect=True)


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def repository(place: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_models(root, GOOD)
    for model in GOOD:
        with (root / model / "config.pbtxt").open("a") as config:
            config.write('parameters { key: "tidegate_max_replicas" value { string_value: "1" } }\n')
    bad_models.write(root, "cut", bad_models.ONNX + _SIZE, {"1/model.onnx": _CUT})
    bad_models.write(root, "syntax", f"{bad_models.PYTHON}{_SIZE}input [ {{\n")
    bad_models.write(root, "raises", bad_models.PYTHON + _SIZE, {"1/model.py": bad_models.code('raise ValueError("no weights")')})
    bad_models.write(root, "dies", bad_models.PYTHON + _SIZE, {"1/model.py": "import os\nos._exit(3)\n"})
    bad_models.write(root, "hangs", bad_models.PYTHON + _SIZE, {"1/model.py": bad_models.code("import time; time.sleep(3600)")})
    return root


@pytest.fixture(scope="module")
def fleet(place: str, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    env, root = {"TIDEGATE_LOAD_TIMEOUT_S": str(LIMIT_S)}, tmp_path_factory.mktemp("fleet")
    with fleet_on(place, root, "--memory-budget", "50MiB", repository=repository, sources=(COMPLETE,), env=env) as (running, _):
        yield running


def fill(fleet: Tidegate) -> None:
    """With what serves."""

    def is_full() -> bool:
        for model in sorted(set(GOOD) - served(fleet)):
            answer = ask(fleet, model)  # on a busy machine its load may take longer than the limit, and is tried again
            assert status(answer) == 503 or answer_of(answer) == 1.0 + GOOD.index(model)
        return served(fleet) == set(GOOD)

    wait_for(is_full, timeout_s=240, what="a full fleet")


def served(fleet: Tidegate) -> set[str]:
    return set().union(*loaded(fleet).values())


def listed(fleet: Tidegate, model: str) -> dict[str, Any]:
    return next(each for each in AdminClient(fleet.endpoints["admin"]).list_models() if each["name"] == model)


@beside_the_gateway
@pytest.mark.parametrize(("model", "says"), [("cut", b"bytes of it are missing"), ("syntax", b"config.pbtxt:")])
def test_for_one_whose_files_cannot_be_loaded_nothing_goes_and_who_asks_is_told(fleet: Tidegate, model: str, says: bytes) -> None:
    fill(fleet)
    evicted = len(events(fleet, "evicted"))
    for _ in range(3):
        refused = ask(fleet, model)
        assert status(refused) == 503
        assert says in refused
        assert re.search(rb"(?i)\r\nretry-after: [1-9]", refused)
    assert served(fleet) == set(GOOD)
    assert len(events(fleet, "evicted")) == evicted
    assert says.decode() in listed(fleet, model)["reason"]
    assert any(f"model={model}" in line and says.decode() in line for line in fleet.said().splitlines())


@beside_the_gateway
def test_one_that_has_failed_takes_nothing_elses_place_again(fleet: Tidegate) -> None:
    fill(fleet)
    first = ask(fleet, "raises")
    assert status(first) == 503
    assert b"ValueError: no weights" in first
    assert b"At:" not in first

    def is_tried_again() -> bool:
        fill(fleet)
        refused = ask(fleet, "raises")
        assert status(refused) == 503
        assert b"ValueError: no weights" in refused
        return b"nothing is unloaded to try it again" in refused

    wait_for(is_tried_again, timeout_s=120, what="the end of its quarantine")
    assert served(fleet) == set(GOOD)
    places = [event["server"] for event in events(fleet, "evicted") if "'raises'" in event["reason"]]
    assert len(places) == len(set(places)), "it is tried once on each server, as the first failure might have been that server's"


@on_nodes
@pytest.mark.parametrize(
    ("model", "says"),
    [
        pytest.param("dies", "its Python process ended with exit status 3 before the model was ready", id="dies"),
        pytest.param("hangs", f"was not loaded within {LIMIT_S:g} s (TIDEGATE_LOAD_TIMEOUT_S); its Python process was still", id="hangs"),
    ],
)
def test_one_whose_load_triton_would_never_end_fails_and_is_loaded_once_it_is_mended(
    fleet: Tidegate, repository: Path, model: str, says: str
) -> None:
    admin = AdminClient(fleet.endpoints["admin"])
    with pytest.raises(InvalidRequest) as caught:
        admin.load(model)
    assert says in str(caught.value)
    assert says in listed(fleet, model)["reason"]
    wait_for(lambda: listed(fleet, model)["state"] == "UNAVAILABLE", timeout_s=60, what="the end of its load")
    bad_models.mend(repository, model)
    assert admin.load(model)["state"] == "READY"
    admin.unload(model)


@on_nodes
def test_a_server_that_is_killed_is_an_event_and_what_it_had_is_counted_as_lost(fleet: Tidegate) -> None:
    fill(fleet)
    before, lost = len(events(fleet, "down")), counted(fleet, "tidegate_fleet_events_total", kind="lost")
    killed, took = next((name, models) for name, models in loaded(fleet).items() if models)
    os.kill(triton_of(fleet, killed), signal.SIGKILL)
    wait_for(lambda: len(events(fleet, "up")) == before + 1, timeout_s=60, what="its return")
    down = events(fleet, "down")[-1]
    assert (down["server"], down["model"]) == (killed, "")
    how, _, had = down["reason"].partition("; with it ")
    # A connection that is refused may be seen before a node says why.
    assert how.startswith(("the Triton of the node at ", "the Triton at "))
    assert all(model in had for model in took)
    assert counted(fleet, "tidegate_fleet_events_total", kind="lost") == lost + len(took)
    assert counted(fleet, "tidegate_fleet_events_total", kind="down") == before + 1
    assert counted(fleet, "tidegate_triton_losses_total") == before + 1
    assert f"server {killed} is down: {how}" in fleet.said()
    assert f"server {killed} is up after" in fleet.said()
    assert f"server {killed}: {how}" in " ".join(run_cli("fleet", "--state-dir", str(fleet.state_dir)).stdout.split())
