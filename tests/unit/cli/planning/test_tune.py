"""What `tidegate tune` checks before it starts anything, and its defaults; tests/e2e/tuning/test_tune.py has a whole
run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from control_plane.cli.planning import tune as command
from control_plane.core.errors import InvalidRequest, ModelNotFound
from control_plane.settings import PROJECT_ROOT, load_settings
from control_plane.tuning.domain.request_mix import parse_texts

TEXTS = 'input { name: "TEXT" data_type: TYPE_STRING dims: 1 }'

STEPS = 'ensemble_scheduling { step [ { model_name: "tokenizer" }, { model_name: "encoder" } ] }'


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Models of texts and of numbers, and an ensemble of both."""
    for name, config in {
        "tokenizer": f'backend: "python" {TEXTS}',
        "encoder": 'backend: "onnxruntime" input { name: "IDS" data_type: TYPE_INT64 dims: -1 }',
        "both": f'platform: "ensemble" {TEXTS} {STEPS}',
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(config)
    return tmp_path


def find(models: Path, model: str, tuned: str | None = None) -> Any:
    return command._find(load_settings({"model_repository": [models]}).triton, model, tuned)


@pytest.mark.parametrize(
    ("model", "given", "tuned"),
    [
        pytest.param("encoder", None, "encoder", id="a model itself"),
        pytest.param("both", None, "encoder", id="an ensemble's last step"),
        pytest.param("both", "tokenizer", "tokenizer", id="the step that is named"),
    ],
)
def test_what_is_tuned(models: Path, model: str, given: str | None, tuned: str) -> None:
    subject = find(models, model, given)
    assert (subject.model.name, subject.tuned.name) == (model, tuned)
    assert subject.config == models / tuned / "config.pbtxt"


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        pytest.param({"model": "nothing"}, ModelNotFound, "no model 'nothing' in", id="no such model"),
        pytest.param(
            {"model": "both", "tuned": "other"}, InvalidRequest, "both runs tokenizer, encoder; name one of these", id="no such step"
        ),
        pytest.param(
            {"model": "both", "tuned": "both"}, InvalidRequest, "is an ensemble's, which computes nothing itself", id="an ensemble itself"
        ),
        pytest.param({"model": "both", "concurrency": "1,many"}, InvalidRequest, "--concurrency 1,many: write numbers", id="no numbers"),
        pytest.param({"model": "both", "concurrency": "0"}, InvalidRequest, "from 1 to 1024", id="none in flight"),
        pytest.param({"model": "both"}, InvalidRequest, "samples_mix.tsv cannot be read.*say with --mix", id="no mix"),
        pytest.param({"model": "both", "mix": "empty"}, InvalidRequest, "the mix has no texts", id="an empty mix"),
        pytest.param(
            {"model": "encoder", "mix": "texts"}, InvalidRequest, "encoder does not take one text; write perf_analyzer's JSON", id="numbers"
        ),
        pytest.param({"model": "encoder", "mix": "other.json"}, InvalidRequest, "must be perf_analyzer's JSON", id="other JSON"),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    models: Path, tmp_path: Path, arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    for name, text in {"empty": "\n", "texts": "a text\n", "other.json": '{"inputs": []}'}.items():
        (tmp_path / name).write_text(text)
    mix = {"mix": tmp_path / arguments["mix"]} if "mix" in arguments else {}
    with pytest.raises(error, match=says):
        command.tune(**{**arguments, **mix}, model_repository=[models], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_levels_are_sorted_and_each_once() -> None:
    assert command._levels("32, 1,8,8") == (1, 8, 32)


def test_texts_become_requests_to_the_models_one_input(models: Path, tmp_path: Path) -> None:
    (tmp_path / "mix").write_text("3\ta\n1\tb\n")
    data = json.loads(command._requests(tmp_path / "mix", find(models, "both")))["data"]
    assert sum(entry == {"TEXT": ["a"]} for entry in data) == 151
    assert sum(entry == {"TEXT": ["b"]} for entry in data) == 50


def test_json_is_sent_as_it_is(models: Path, tmp_path: Path) -> None:
    text = '{"data": [{"IDS": {"content": [1], "shape": [1]}}]}'
    (tmp_path / "mix.json").write_text(text)
    assert command._requests(tmp_path / "mix.json", find(models, "encoder")) == text


def test_the_ensemble_that_ships_has_a_mix_of_its_own() -> None:
    mix = parse_texts((PROJECT_ROOT / "ensembles" / "text_embedding" / command.MIX_OF_MODEL).read_text())
    total = sum(weight for weight, _ in mix)
    short = sum(weight for weight, text in mix if len(text) < 80)
    assert short / total == pytest.approx(0.95)
    assert all(len(text) > 500 for _, text in mix if len(text) >= 80)
