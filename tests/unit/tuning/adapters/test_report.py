from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from control_plane.core.errors import StartupError
from control_plane.tuning.adapters.config import TunedConfig
from control_plane.tuning.adapters.report import MATPLOTLIB_IS_MISSING, Report, apply_recommendation, headline, write_report
from control_plane.tuning.domain.candidates import DEFAULT, Candidate, Knob, Level
from control_plane.tuning.domain.search import Recommendation
from control_plane.tuning.tuner import TuningResult

TWO = DEFAULT.changed(Knob.INSTANCES, 2)
PINNED = TWO.changed(Knob.TRITON_CPUS, "1-3")
DELAYED = DEFAULT.changed(Knob.QUEUE_DELAY, 500)
TEXT = "# Why.\ninstance_group { count: 1 }\n"


def report_of(recommended: Candidate) -> Report:
    one_round = (Level(1, 100.0, 1.0, 2.0), Level(8, 400.0, 3.0, 12.5))
    result = TuningResult(
        screened={DEFAULT: one_round, TWO: one_round, PINNED: one_round, DELAYED: one_round, DEFAULT.changed(Knob.LANES, 2): ()},
        rounds={DEFAULT: [one_round] * 5, TWO: [one_round] * 5, PINNED: [one_round] * 5},
        failures={DEFAULT.changed(Knob.LANES, 2): "no [memory] left"},
        recommendation=Recommendation(recommended, "It is the best."),
    )
    message = text_format.Parse(TEXT, model_config_pb2.ModelConfig())
    return Report("encoder", TunedConfig(Path("/m/config.pbtxt"), TEXT, message), result, 10.0, {"cpus": 4}, "mix.tsv")


@pytest.mark.parametrize(
    ("recommended", "says"),
    [
        pytest.param(DEFAULT, "Recommended for encoder: default", id="default"),
        pytest.param(TWO, "Recommended for encoder: instances 2", id="config"),
        pytest.param(PINNED, "instances 2, Triton CPUs 1-3, served with `tidegate serve --triton-cpus 1-3`", id="pinned"),
    ],
)
def test_the_headline(recommended: Candidate, says: str) -> None:
    assert headline(report_of(recommended)).endswith(says)


def test_everything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert write_report(report_of(PINNED), folder) == []
    assert sorted(path.name for path in folder.iterdir()) == ["config.pbtxt", "plot.png", "table.json", "table.txt"]
    config = (folder / "config.pbtxt").read_text()
    assert "# tidegate tune: needs `tidegate serve --triton-cpus 1-3`" in config
    assert config.endswith("# Why.\ninstance_group { count: 2 }\n")
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_has_every_candidate_at_every_level(tmp_path: Path) -> None:
    write_report(report_of(TWO), tmp_path)
    lines = (tmp_path / "table.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line.startswith("instances 2  ")]
    assert rows == [["instances", "2", "1", "100", "1.0", "2.0", "5"], ["instances", "2", "8", "400", "3.0", "12.5", ">", "5"]]
    assert sum(line.startswith("queue delay 500 us") for line in lines) == 2
    assert any("lanes 2" in line and "no [memory]" in line for line in lines)
    assert lines[-2:] == ["Recommended for encoder: instances 2", "It is the best."]


def test_the_json_has_what_was_asked_and_all_rounds(tmp_path: Path) -> None:
    write_report(report_of(PINNED), tmp_path)
    found = json.loads((tmp_path / "table.json").read_text())
    assert found["recommended"] == {
        "changes": {"instances": 2, "triton_cpus": "1-3"},
        "serve_flags": ["--triton-cpus", "1-3"],
        "reason": "It is the best.",
    }
    assert (found["model"], found["p99_limit_ms"], found["mix"], found["machine"]) == ("encoder", 10.0, "mix.tsv", {"cpus": 4})
    assert [len(each["rounds"]) for each in found["final_rounds"]] == [5, 5, 5]
    assert len(found["medians"]) == 8
    assert found["medians"][0] == {"candidate": "default", "rounds": 5, "concurrency": 1, "throughput": 100.0, "p50_ms": 1.0, "p99_ms": 2.0}
    assert found["failures"] == {"lanes 2": "no [memory] left"}


def test_without_matplotlib_the_rest_is_written_and_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert write_report(report_of(DEFAULT), tmp_path) == [MATPLOTLIB_IS_MISSING]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.pbtxt", "table.json", "table.txt"]
    assert "make extras" in MATPLOTLIB_IS_MISSING


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match=r"--out .*file cannot be written"):
        write_report(report_of(DEFAULT), tmp_path / "file")


def applied(folder: Path, recommended: Candidate) -> str:
    (folder / "config.pbtxt").write_text(TEXT)
    report = report_of(recommended)
    return apply_recommendation(dataclasses.replace(report, tuned=dataclasses.replace(report.tuned, path=folder / "config.pbtxt")))


def test_applying_keeps_what_was_there(tmp_path: Path) -> None:
    assert "config.pbtxt.bak" in applied(tmp_path, TWO)
    assert (tmp_path / "config.pbtxt.bak").read_text() == TEXT
    assert (tmp_path / "config.pbtxt").read_text().endswith("# Why.\ninstance_group { count: 2 }\n")


def test_applying_again_keeps_both(tmp_path: Path) -> None:
    applied(tmp_path, TWO)
    assert "config.pbtxt.bak1" in applied(tmp_path, TWO)
    assert (tmp_path / "config.pbtxt.bak").read_text() == (tmp_path / "config.pbtxt.bak1").read_text() == TEXT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.pbtxt", "config.pbtxt.bak", "config.pbtxt.bak1"]


def test_applying_the_default_changes_nothing(tmp_path: Path) -> None:
    assert "stays as it is" in applied(tmp_path, DEFAULT)
    assert [path.name for path in tmp_path.iterdir()] == ["config.pbtxt"]
    assert (tmp_path / "config.pbtxt").read_text() == TEXT
