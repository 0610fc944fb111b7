from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from control_plane.core.errors import InvalidRequest, ModelLoadFailed
from control_plane.tuning.adapters.config import TunedConfig, read_tuned_config, text_input
from control_plane.tuning.domain.candidates import DEFAULT, Candidate, Knob

PROJECT = Path(__file__).resolve().parents[4]

USUAL = """# Says why.
backend: "text_encoder"
max_batch_size: 64  # rows
instance_group [ { kind: KIND_CPU count: 1 } ]

# Not instance_group { count: 1 } but this:
dynamic_batching { max_queue_delay_microseconds: 0 }
parameters { key: "lanes" value: { string_value: "1" } }
parameters { key: "variant" value: { string_value: "auto" } }
"""


def config(text: str) -> TunedConfig:
    return TunedConfig(Path("/m/config.pbtxt"), text, parsed(text))


def parsed(text: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def turned(*changes: tuple[Knob, int | str]) -> Candidate:
    candidate = DEFAULT
    for knob, value in changes:
        candidate = candidate.changed(knob, value)
    return candidate


@pytest.mark.parametrize(
    ("text", "knobs"),
    [
        pytest.param(USUAL, {Knob.INSTANCES: 1, Knob.THREADS: 0, Knob.LANES: 1, Knob.QUEUE_DELAY: 0}, id="usual"),
        pytest.param('backend: "python"', {Knob.INSTANCES: 1}, id="nothing said"),
        pytest.param(
            'platform: "onnxruntime_onnx" dynamic_batching { }', {Knob.INSTANCES: 1, Knob.THREADS: 0, Knob.QUEUE_DELAY: 0}, id="onnx"
        ),
        pytest.param(
            'backend: "python" parameters { key: "intra_op_thread_count" value: { string_value: "3" } }',
            {Knob.INSTANCES: 1, Knob.THREADS: 3},
            id="a backend of somebody's that mentions threads",
        ),
        pytest.param(
            'backend: "python" parameters { key: "lanes" value: { string_value: "auto" } } instance_group { count: 4 }',
            {Knob.INSTANCES: 4, Knob.LANES: 0},
            id="lanes left to the backend",
        ),
        pytest.param("instance_group [ { count: 1 gpus: 0 }, { count: 2 gpus: 1 } ]", {}, id="two groups are their author's"),
        pytest.param(
            "dynamic_batching { max_queue_delay_microseconds: 700 } instance_group { kind: KIND_CPU }",
            {Knob.INSTANCES: 1, Knob.QUEUE_DELAY: 700},
            id="no count",
        ),
    ],
)
def test_knobs(text: str, knobs: dict[Knob, int]) -> None:
    assert config(text).knobs == knobs


@pytest.mark.parametrize(
    ("text", "gpu", "on_cpu"),
    [
        pytest.param(USUAL, True, True, id="said"),
        pytest.param("", False, True, id="not said, no GPU"),
        pytest.param("", True, False, id="not said, a GPU"),
        pytest.param("instance_group { kind: KIND_GPU }", False, False, id="a GPU said"),
    ],
)
def test_where_it_runs(text: str, gpu: bool, on_cpu: bool) -> None:
    assert config(text).runs_on_cpu(gpu_is_there=gpu) is on_cpu


def test_values_are_replaced_where_they_stand() -> None:
    candidate = turned((Knob.INSTANCES, 2), (Knob.LANES, 4), (Knob.QUEUE_DELAY, 500))
    expected = USUAL.replace("KIND_CPU count: 1", "KIND_CPU count: 2").replace("microseconds: 0", "microseconds: 500")
    assert config(USUAL).text_of(candidate) == expected.replace('string_value: "1"', 'string_value: "4"')


def test_what_is_not_there_is_appended() -> None:
    text = config(USUAL).text_of(turned((Knob.THREADS, 1)))
    assert text.startswith(USUAL.rstrip())
    assert parsed(text).parameters["intra_op_thread_count"].string_value == "1"


CONFIGS = [
    pytest.param(USUAL, id="usual"),
    pytest.param('backend: "text_encoder" dynamic_batching { }', id="empty batching, no group"),
    pytest.param('backend: "text_encoder" dynamic_batching { } instance_group [ { kind: KIND_CPU } ]', id="no count"),
    pytest.param('dynamic_batching: { preferred_batch_size: [ 4, 8 ] } instance_group: [ { name: "a { count: 9 }" count : 1 } ]', id="odd"),
    pytest.param("dynamic_batching <max_queue_delay_microseconds: 0x10> instance_group <count: 0x1>", id="hexadecimal, angle brackets"),
    pytest.param("# dynamic_batching { max_queue_delay_microseconds: 0 }\ndynamic_batching { }\n# count: 1", id="only comments say it"),
    pytest.param(
        'parameters: [ { key: "lanes", value { string_value: "1" } }, { value: { string_value: "2" } key: "intra_op_thread_count" } ]',
        id="parameters",
    ),
    *(pytest.param(path.read_text(), id=f"{path.parent.name}/{path.name}") for path in sorted(PROJECT.glob("model_repository/**/*.pbtxt"))),
]


@pytest.mark.parametrize("text", CONFIGS)
@pytest.mark.parametrize(
    "changes", [[(Knob.INSTANCES, 3)], [(Knob.THREADS, 2), (Knob.LANES, 5)], [(Knob.INSTANCES, 2), (Knob.QUEUE_DELAY, 250)]]
)
def test_the_text_says_what_was_meant_and_nothing_else(text: str, changes: list[tuple[Knob, int]]) -> None:
    expected = parsed(text)
    for knob, value in changes:
        if knob is Knob.INSTANCES:
            (expected.instance_group[0] if expected.instance_group else expected.instance_group.add()).count = value
        elif knob is Knob.QUEUE_DELAY:
            expected.dynamic_batching.max_queue_delay_microseconds = value
        else:
            expected.parameters["lanes" if knob is Knob.LANES else "intra_op_thread_count"].string_value = str(value)
    assert parsed(config(text).text_of(turned(*changes))) == expected


@pytest.mark.parametrize("text", [each for each in CONFIGS if each.id == "usual" or "/" in str(each.id)])
def test_comments_of_usual_texts_stay(text: str) -> None:
    changed = config(text).text_of(turned((Knob.INSTANCES, 2), (Knob.THREADS, 1)))
    assert [line for line in text.splitlines() if line.startswith("#")] == [line for line in changed.splitlines() if line.startswith("#")]


def test_pinning_is_not_in_the_text() -> None:
    assert config(USUAL).text_of(turned((Knob.TRITON_CPUS, "1"), (Knob.MODEL_CPUS, "1"))) == USUAL


def test_the_header_says_what_why_and_with_which_flags() -> None:
    candidate = turned((Knob.INSTANCES, 2), (Knob.TRITON_CPUS, "1-3"))
    text = config(USUAL).text_with_reason(candidate, "It is faster.")
    header = [line for line in text.splitlines() if line.startswith("# tidegate tune: ")]
    assert header == [
        "# tidegate tune: instances 2, Triton CPUs 1-3",
        "# tidegate tune: It is faster.",
        "# tidegate tune: needs `tidegate serve --triton-cpus 1-3`",
    ]
    assert text.splitlines()[3] == "# Says why."


def test_a_header_of_before_is_replaced() -> None:
    once = config(USUAL).text_with_reason(turned((Knob.INSTANCES, 2)), "First.")
    again = config(once).text_with_reason(DEFAULT, "Second.")
    assert "First." not in again
    assert again.startswith("# tidegate tune: the default is best, nothing is changed\n# tidegate tune: Second.\n# Says why.")


def test_reads_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").write_text(USUAL)
    found = read_tuned_config(tmp_path / "config.pbtxt")
    assert (found.path, found.text, found.message) == (tmp_path / "config.pbtxt", USUAL, parsed(USUAL))


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        pytest.param(None, InvalidRequest, "does not exist", id="none"),
        pytest.param('ensemble_scheduling { step { model_name: "a" } }', InvalidRequest, "--tune", id="an ensemble"),
        pytest.param("backend: 1", ModelLoadFailed, "config.pbtxt:1", id="broken"),
    ],
)
def test_what_cannot_be_tuned_is_refused(tmp_path: Path, text: str | None, error: type[Exception], says: str) -> None:
    path = tmp_path / "config.pbtxt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(error, match=says):
        read_tuned_config(path)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        pytest.param('input { name: "TEXT" data_type: TYPE_STRING dims: 1 }', "TEXT", id="text"),
        pytest.param('input { name: "IDS" data_type: TYPE_INT64 dims: -1 }', None, id="numbers"),
        pytest.param('input [ { name: "A" data_type: TYPE_STRING }, { name: "B" data_type: TYPE_STRING } ]', None, id="two"),
        pytest.param("", None, id="none said"),
    ],
)
def test_the_one_text_input(tmp_path: Path, text: str, name: str | None) -> None:
    (tmp_path / "config.pbtxt").write_text(text)
    assert text_input(tmp_path / "config.pbtxt") == name
