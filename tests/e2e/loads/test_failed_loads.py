"""Every failed load says why, wherever Triton says it, and a model that could not be loaded can be once it is mended."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.admin.client import AdminClient
from control_plane.core.errors import InvalidRequest, ObjectNotFound
from tests.e2e import raw_http
from tests.e2e import tidegate as servers
from tests.e2e.loads import bad_models
from tests.e2e.loads.bad_models import BAD_MODELS, BadModel
from tests.e2e.tidegate import Tidegate, run_cli

pytestmark = pytest.mark.timeout(180)

LONG_S = 120.0
"""The limit of a load, which none of these may wait for."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bad") / "models"
    bad_models.write(root, "good")
    for each in BAD_MODELS:
        each.write(root)
    return root


@pytest.fixture(scope="module")
def running(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    limit = {"TIDEGATE_LOAD_TIMEOUT_S": str(LONG_S)}
    running = servers.start(tmp_path_factory.mktemp("state"), "--model-repository", str(repository), "--load", "good", env=limit)
    below = servers.descendants(running.process.pid)
    yield running
    assert running.stop() == 0, running.said()
    assert not servers.living(below), "processes outlived tidegate"


def serves(running: Tidegate, model: str) -> bool:
    tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}
    return raw_http.status(raw_http.infer(running.port("http"), model, {"inputs": [tensor]})) == 200


def load_over_v2(running: Tidegate, model: str) -> str:
    """What a client of the repository API is told."""
    request = urllib.request.Request(f"{running.endpoints['http']}/v2/repository/models/{model}/load", b"{}", method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=LONG_S)
    found: str = json.loads(caught.value.read())["error"]
    return found


@pytest.mark.parametrize("bad", [pytest.param(each, id=each.name) for each in BAD_MODELS])
def test_each_says_why_at_once_in_the_answer_the_list_and_the_log(running: Tidegate, bad: BadModel) -> None:
    admin = AdminClient(running.endpoints["admin"])
    with pytest.raises((InvalidRequest, ObjectNotFound)) as caught:
        admin.load(bad.name)
    assert bad.says in str(caught.value)
    assert "At:" not in str(caught.value)
    listed = next(model for model in admin.list_models() if model["name"] == bad.name)
    assert bad.says in listed["reason"]
    assert listed["state"] == "UNAVAILABLE"
    assert any("could not be loaded" in line and bad.says in line for line in running.said().splitlines()), running.said()
    assert serves(running, "good")


@pytest.mark.parametrize("bad", [each for each in BAD_MODELS if each.name in ("no_model_py", "raises", "exits_at_import")])
def test_clients_of_the_repository_api_are_told_as_well(running: Tidegate, bad: BadModel) -> None:
    told = load_over_v2(running, bad.name)
    assert bad.says in told
    assert "At:" not in told


def test_the_list_says_of_all_of_them_why(running: Tidegate) -> None:
    listed = run_cli("models", "list", "--state-dir", str(running.state_dir), env={"COLUMNS": "400"}).stdout
    reasons = {line.split()[0]: line for line in listed.splitlines()[1:]}
    assert [each.name for each in BAD_MODELS if each.says not in reasons[each.name]] == []


@pytest.mark.parametrize("name", ["no_model_py", "exits_at_import", "own_stub", "config_syntax"])
def test_one_that_is_mended_is_loaded_by_the_same_triton(running: Tidegate, repository: Path, name: str) -> None:
    before = running.said().count("Triton is up")
    admin = AdminClient(running.endpoints["admin"])
    bad_models.mend(repository, name)
    assert admin.load(name)["state"] == "READY"
    assert serves(running, name)
    assert admin.unload(name)["reason"] in ("", "unloaded")
    assert running.said().count("Triton is up") == before


def test_more_that_die_at_import_than_triton_has_threads_to_load_with_keep_no_other_from_loading(
    running: Tidegate, repository: Path
) -> None:
    admin = AdminClient(running.endpoints["admin"])
    for number in range(6):
        bad_models.write(repository, f"dies{number}", files={"1/model.py": "import os\nos._exit(3)\n"})
        with pytest.raises(InvalidRequest, match="ended with exit status 3"):
            admin.load(f"dies{number}")
    bad_models.write(repository, "another")
    assert admin.load("another")["state"] == "READY"
    assert serves(running, "another")
