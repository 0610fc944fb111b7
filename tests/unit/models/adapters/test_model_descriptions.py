from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from control_plane.core.algorithms.closure import MAX_MODELS
from control_plane.core.names import MAX_SIZE_BYTES
from control_plane.fleet.adapters import memory_text as fleet_memory
from control_plane.fleet.domain.memory import DesiredState
from control_plane.fleet.domain.snapshot import ModelSnapshot
from control_plane.models.adapters.model_descriptions import ModelDescriptionFiles
from control_plane.models.domain.description import DescribedModel, ModelSpec, Tier
from control_plane.workers.codec import encode
from control_plane.workers.messages.to_workers import ModelsChanged

MIB = 2**20


def ensemble(*steps: str) -> str:
    names = ", ".join(f'{{ model_name: "{step}" model_version: -1 }}' for step in steps)
    return f'platform: "ensemble"\nensemble_scheduling {{ step [ {names} ] }}\n'


def declaring(**parameters: str) -> str:
    return "".join(f'parameters {{ key: "tidegate_{key}" value: {{ string_value: "{value}" }} }}\n' for key, value in parameters.items())


class Repository:
    def __init__(self, path: Path) -> None:
        self.path = path

    def model(self, name: str, config: str = "", *, files: dict[str, int] | None = None) -> Path:
        folder = self.path / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.pbtxt").write_text(config)
        for file, size in (files or {}).items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(bytes(size))
        return folder

    def read(self, *more: Path, config_name: str = "", **parameters: dict[str, str]) -> dict[str, DescribedModel]:
        return ModelDescriptionFiles([self.path, *more], config_name=config_name, parameters=parameters).read()

    def spec(self, **declared: str) -> ModelSpec:
        self.model("m", declaring(**declared))
        return self.read()["m"].spec


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "models")


@pytest.mark.parametrize(
    ("config", "instances"),
    [
        pytest.param("", 1, id="not said"),
        pytest.param("instance_group [ { count: 4 kind: KIND_CPU } ]", 4, id="a group"),
        pytest.param("instance_group [ { kind: KIND_CPU } ]", 1, id="a group without a count"),
        pytest.param("instance_group [ { count: 2 }, { count: 3 kind: KIND_GPU gpus: [ 0, 1 ] } ]", 5, id="two, at least"),
        pytest.param("instance_group [ { count: 2 }, { count: 3 passive: true } ]", 2, id="of passive ones none"),
    ],
)
def test_instances_of_a_replica(repository: Repository, config: str, instances: int) -> None:
    repository.model("m", config)
    assert repository.read()["m"].spec.instances == instances


@pytest.mark.parametrize(("value", "size"), [("1", 2 << 20), ("5", 3 << 20), ("0x1", 3 << 20), ("-1", 3 << 20), ("9" * 5000, 3 << 20)])
def test_a_streamed_model_counts_the_memory_of_its_instances_where_its_files_are_larger(
    repository: Repository, value: str, size: int
) -> None:
    parameter = f'parameters {{ key: "weight_memory_mb" value {{ string_value: "{value}" }} }}'
    repository.model("m", f"instance_group [ {{ count: 2 kind: KIND_CPU }} ] {parameter}")
    file = repository.path / "m/1/weights"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    os.truncate(file, 3 << 20)
    assert abs(repository.read()["m"].file_bytes - size) < 1000


class TestDeclared:
    @pytest.mark.parametrize(
        ("declared", "spec"),
        [
            pytest.param({}, ModelSpec("m"), id="nothing"),
            pytest.param({"resident_bytes": "200MiB"}, ModelSpec("m", resident_bytes=200 * MIB), id="bytes with a binary unit"),
            pytest.param({"resident_bytes": "1.5GB"}, ModelSpec("m", resident_bytes=1_500_000_000), id="bytes with a decimal unit"),
            pytest.param({"resident_bytes": "1024"}, ModelSpec("m", resident_bytes=1024), id="bytes alone"),
            pytest.param({"min_replicas": "2", "max_replicas": " 3 "}, ModelSpec("m", min_replicas=2, max_replicas=3), id="copies"),
            pytest.param(
                {"min_replicas": "3", "max_replicas": "3"}, ModelSpec("m", min_replicas=3, max_replicas=3), id="exactly so many copies"
            ),
            pytest.param({"priority": "-1"}, ModelSpec("m", priority=-1), id="a low priority"),
            pytest.param({"latency_objective_ms": "12.5"}, ModelSpec("m", latency_objective_s=0.0125), id="an objective"),
            pytest.param({"server_labels": "gpu=h200"}, ModelSpec("m", server_labels={"gpu": "h200"}), id="a label"),
            pytest.param({"server_labels": "gpu=h200, zone = a"}, ModelSpec("m", server_labels={"gpu": "h200", "zone": "a"}), id="labels"),
            pytest.param({"pinned": "true"}, ModelSpec("m", min_replicas=1), id="pinned"),
            pytest.param({"pinned": "True", "min_replicas": "2"}, ModelSpec("m", min_replicas=2), id="pinned, and more than one"),
            pytest.param({"pinned": "false"}, ModelSpec("m"), id="not pinned"),
        ],
    )
    def test_what_its_owner_wants(
        self, repository: Repository, caplog: pytest.LogCaptureFixture, declared: dict[str, str], spec: ModelSpec
    ) -> None:
        assert repository.spec(**declared) == spec
        assert caplog.messages == []

    @pytest.mark.parametrize(
        ("key", "value", "right"),
        [
            pytest.param("resident_bytes", "much", "such as 200MiB", id="bytes that are none"),
            pytest.param("resident_bytes", "200 parsecs", "such as 200MiB", id="bytes in no unit"),
            pytest.param("resident_bytes", "0", "such as 200MiB", id="no bytes"),
            pytest.param("resident_bytes", "-1MiB", "such as 200MiB", id="fewer than no bytes"),
            pytest.param("resident_bytes", "2EiB", "an EiB at most", id="more bytes than there are"),
            pytest.param("resident_bytes", "9" * 40, "an EiB at most", id="more bytes than can be told"),
            pytest.param("min_replicas", "1000001", "from 0 to 1000000", id="more copies than servers"),
            pytest.param("max_replicas", "9" * 40, "from 1 to 1000000", id="at most more than can be told"),
            pytest.param("priority", "-1000000001", "within 1000000000 of 0", id="too low a priority"),
            pytest.param("priority", "9" * 40, "within 1000000000 of 0", id="a priority that cannot be told"),
            pytest.param("latency_objective_ms", "4e-324", "milliseconds above 0", id="a time that rounds to none"),
            pytest.param("min_replicas", "-1", "whole number from 0", id="fewer than no copies"),
            pytest.param("min_replicas", "1.5", "whole number from 0", id="half a copy"),
            pytest.param("max_replicas", "0", "whole number from 1", id="no copies at most"),
            pytest.param("priority", "high", "whole number", id="a priority in words"),
            pytest.param("latency_objective_ms", "0", "milliseconds above 0", id="no time"),
            pytest.param("latency_objective_ms", "nan", "milliseconds above 0", id="a time that is none"),
            pytest.param("latency_objective_ms", "inf", "milliseconds above 0", id="all the time"),
            pytest.param("server_labels", "gpu", "such as gpu=h200,zone=a", id="a label without a value"),
            pytest.param("server_labels", "gpu=", "such as gpu=h200,zone=a", id="a label with an empty value"),
            pytest.param("server_labels", "gpu=a,gpu=b", "each once", id="a label with two values"),
            pytest.param("server_labels", "", "such as gpu=h200,zone=a", id="no labels"),
            pytest.param("pinned", "yes", "true or false", id="neither true nor false"),
            pytest.param("pinned", "", "true or false", id="empty"),
        ],
    )
    def test_a_value_that_cannot_be_used_is_left_out(
        self, repository: Repository, caplog: pytest.LogCaptureFixture, key: str, value: str, right: str
    ) -> None:
        assert repository.spec(**{key: value}) == ModelSpec("m")
        (warning,) = caplog.messages
        assert f"model m: tidegate_{key} is {value!r}; expected " in warning
        assert right in warning

    def test_what_it_says_at_most_can_be_told_to_workers(self, repository: Repository, caplog: pytest.LogCaptureFixture) -> None:
        most = {"resident_bytes": "1EiB", "min_replicas": "1000000", "max_replicas": "1000000", "priority": "-1000000000"}
        spec = repository.spec(**most, latency_objective_ms="1e308", server_labels="\u00e9=\U0001f600")
        assert (caplog.messages, spec.min_replicas) == ([], 10**6)
        assert encode(ModelsChanged({"m": ModelSnapshot(spec, Tier.WARM, MAX_SIZE_BYTES, 1.0, 1.0)}))
        assert fleet_memory.encode(DesiredState(spec.min_replicas))

    def test_a_label_that_cannot_be_told_is_left_out(self, repository: Repository, caplog: pytest.LogCaptureFixture) -> None:
        repository.model("m")
        assert repository.read(m={"tidegate_server_labels": "a=\udcff"})["m"].spec == ModelSpec("m")
        assert len(caplog.messages) == 1

    def test_a_parameter_that_nobody_knows_is_told(self, repository: Repository, caplog: pytest.LogCaptureFixture) -> None:
        assert repository.spec(min_replica="1") == ModelSpec("m")
        assert "tidegate_min_replica is known, but tidegate_resident_bytes, tidegate_min_replicas" in caplog.messages[0]

    def test_others_parameters_are_theirs(self, repository: Repository, caplog: pytest.LogCaptureFixture) -> None:
        repository.model("m", 'parameters { key: "priority" value: { string_value: "high" } }')
        assert repository.read()["m"].spec == ModelSpec("m")
        assert caplog.messages == []

    @pytest.mark.parametrize("least", [{"min_replicas": "3"}, {"pinned": "true", "min_replicas": "3"}])
    def test_at_most_is_left_out_where_it_is_less_than_at_least(
        self, repository: Repository, caplog: pytest.LogCaptureFixture, least: dict[str, str]
    ) -> None:
        assert repository.spec(max_replicas="2", **least) == ModelSpec("m", min_replicas=3)
        assert "tidegate_max_replicas is 2, less than the 3" in caplog.messages[0]

    def test_the_command_line_comes_before_the_configuration(self, repository: Repository) -> None:
        repository.model("m", declaring(priority="1", min_replicas="1"))
        assert repository.read(m={"tidegate_priority": "5", "variant": "int8"})["m"].spec == ModelSpec("m", priority=5, min_replicas=1)

    def test_the_configuration_in_force_counts(self, repository: Repository) -> None:
        repository.model("m", declaring(priority="1"))
        (repository.path / "m/configs").mkdir()
        (repository.path / "m/configs/gpu.pbtxt").write_text(declaring(priority="2"))
        assert repository.read()["m"].spec.priority == 1
        assert repository.read(config_name="gpu")["m"].spec.priority == 2


class TestFiles:
    def test_all_of_the_newest_version_count(self, repository: Repository) -> None:
        files = {"9/model.onnx": 900, "10/model.onnx": 10, "10/int8/model.onnx": 7, "notes": 5000, "texts/1/t": 30}
        repository.model("m", files=files)
        assert repository.read()["m"].file_bytes == 17

    @pytest.mark.parametrize(
        ("policy", "size"),
        [
            pytest.param("latest { num_versions: 2 }", 907, id="the latest two"),
            pytest.param("latest { }", 7, id="the latest"),
            pytest.param("all { }", 917, id="all"),
            pytest.param("specific { versions: [ 2, 10, 11 ] }", 17, id="those that are named, as far as they are there"),
        ],
    )
    def test_all_versions_that_are_loaded_count(self, repository: Repository, policy: str, size: int) -> None:
        repository.model("m", f"version_policy: {{ {policy} }}", files={"2/a": 10, "9/a": 900, "10/a": 7})
        assert repository.read()["m"].file_bytes == size

    def test_links_count_as_what_they_lead_to(self, repository: Repository, tmp_path: Path) -> None:
        (tmp_path / "blob").write_bytes(bytes(123))
        folder = repository.model("m", files={"1/a": 1})
        (folder / "1/model.onnx").symlink_to(tmp_path / "blob")
        (folder / "1/lost").symlink_to(tmp_path / "nowhere")
        assert repository.read()["m"].file_bytes == 124

    def test_a_model_that_is_not_built_has_none(self, repository: Repository) -> None:
        repository.model("m", files={"build.py": 10})
        assert repository.read()["m"] == DescribedModel(ModelSpec("m"), 0)

    def test_one_without_a_configuration_is_described_too(self, repository: Repository) -> None:
        (repository.model("m", files={"1/model.onnx": 5}) / "config.pbtxt").unlink()
        (repository.path / ".git").mkdir()
        (repository.path / "README").touch()
        assert repository.read() == {"m": DescribedModel(ModelSpec("m"), 5)}


class TestEnsembles:
    def test_one_weighs_what_it_needs_each_once(self, repository: Repository) -> None:
        repository.model("all", ensemble("pipe", "encoder"))
        repository.model("pipe", ensemble("tokenizer", "encoder"), files={"1/readme": 1})
        repository.model("tokenizer", files={"1/vocabulary": 20})
        repository.model("encoder", files={"1/model.onnx": 300})
        found = repository.read()
        assert found["all"] == DescribedModel(ModelSpec("all"), 321, frozenset({"pipe", "tokenizer", "encoder"}))
        assert found["pipe"] == DescribedModel(ModelSpec("pipe"), 321, frozenset({"tokenizer", "encoder"}))
        assert found["encoder"] == DescribedModel(ModelSpec("encoder"), 300)

    def test_steps_may_lie_in_another_source(self, repository: Repository, tmp_path: Path) -> None:
        other = Repository(tmp_path / "ensembles")
        other.model("pipe", ensemble("encoder"))
        repository.model("encoder", files={"1/model.onnx": 300})
        assert repository.read(other.path)["pipe"].file_bytes == 300

    def test_a_step_that_nobody_has_is_named(self, repository: Repository) -> None:
        repository.model("pipe", ensemble("lost"))
        assert repository.read()["pipe"] == DescribedModel(ModelSpec("pipe"), 0, frozenset({"lost"}))

    def test_a_circle_ends(self, repository: Repository) -> None:
        repository.model("a", ensemble("b"), files={"1/x": 1})
        repository.model("b", ensemble("a"), files={"1/x": 10})
        assert repository.read()["a"] == DescribedModel(ModelSpec("a"), 11, frozenset({"b"}))

    def test_of_more_models_than_can_be_loaded_only_some_are_counted(self, repository: Repository) -> None:
        for each in range(2 * MAX_MODELS):
            repository.model(f"m{each}", ensemble(f"m{each + 1}"))
        assert len(repository.read()["m0"].steps) == MAX_MODELS - 1

    def test_sequences_are_had_by_whoever_needs_a_model_that_has_them(self, repository: Repository) -> None:
        repository.model("all", ensemble("pipe"))
        repository.model("pipe", ensemble("counter"))
        repository.model("counter", "sequence_batching { }")
        repository.model("other")
        assert {name for name, model in repository.read().items() if model.has_sequences} == {"all", "pipe", "counter"}


class TestFolders:
    def test_one_whose_name_no_client_can_say_is_no_model_and_that_is_told_once(
        self, repository: Repository, caplog: pytest.LogCaptureFixture
    ) -> None:
        repository.model("m", ensemble("old models"))
        for name in (os.fsdecode(b"m\xff"), "old models", "m" * 255):
            repository.model(name, declaring(priority="1"))
        descriptions = ModelDescriptionFiles([repository.path], config_name="")
        for _ in range(2):
            assert descriptions.read().keys() == {"m", "m" * 255}
        assert ["cannot be a model's name" in message for message in caplog.messages] == [True, True]
        assert "m\\udcff" in caplog.text

    def test_files_with_holes_weigh_no_more_than_can_be_told(self, repository: Repository) -> None:
        folder = repository.model("m", files={"1/a": 1})
        with TemporaryFile(dir="/dev/shm") as hole:
            os.truncate(hole.fileno(), 2**62)
            for name in "bcde":
                (folder / "1" / name).symlink_to(f"/proc/self/fd/{hole.fileno()}")
            assert repository.read()["m"].file_bytes == MAX_SIZE_BYTES

    def test_one_that_may_not_be_looked_into_costs_only_itself(self, repository: Repository) -> None:
        (repository.model("m", declaring(priority="1")) / "configs").mkdir()
        assert repository.read(config_name="x" * 300)["m"].spec.priority == 1  # the system refuses to look for that


class TestAgain:
    def test_only_a_configuration_that_has_changed_is_read_again(self, repository: Repository, caplog: pytest.LogCaptureFixture) -> None:
        repository.model("bad", "max_batch_size: many")
        repository.model("vague", declaring(priority="high"))
        folder = repository.model("m", declaring(priority="1"))
        descriptions = ModelDescriptionFiles([repository.path], config_name="")
        assert set(descriptions.read()) == {"bad", "vague", "m"}, "who asks for the bad one is to be told why"
        assert descriptions.read()["m"].spec.priority == 1
        assert len(caplog.messages) == 2  # each once
        repository.model("m", declaring(priority="2"))
        os.utime(folder / "config.pbtxt", ns=(1, 1))
        repository.model("bad")
        assert descriptions.read()["m"].spec.priority == 2
        assert set(descriptions.read()) == {"bad", "vague", "m"}
        assert len(caplog.messages) == 2

    def test_a_change_of_its_files_or_its_configuration_shows(self, repository: Repository) -> None:
        folder = repository.model("m", declaring(priority="1"), files={"1/weights": 5})
        descriptions = ModelDescriptionFiles([repository.path], config_name="")
        seen = [descriptions.read()["m"].changed_ns]
        assert descriptions.read()["m"].changed_ns == seen[0] > 0
        for number, path in enumerate(("config.pbtxt", "1/weights", "1", "."), start=1):
            later_ns = seen[0] + number * 10**9
            os.utime(folder / path, ns=(later_ns, later_ns))
            seen.append(descriptions.read()["m"].changed_ns)
        assert len(set(seen)) == len(seen)

    def test_files_are_weighed_each_time(self, repository: Repository) -> None:
        repository.model("pipe", ensemble("m"))
        repository.model("m", files={"1/model.onnx": 1})
        descriptions = ModelDescriptionFiles([repository.path], config_name="")
        assert descriptions.read()["pipe"].file_bytes == 1
        repository.model("m", files={"2/model.onnx": 22})
        assert descriptions.read()["pipe"].file_bytes == 22

    def test_what_is_gone_is_forgotten(self, repository: Repository) -> None:
        folder = repository.model("m")
        descriptions = ModelDescriptionFiles([repository.path], config_name="")
        assert list(descriptions.read()) == ["m"]
        folder.rename(repository.path / "n")
        assert list(descriptions.read()) == ["n"]

    def test_a_source_that_cannot_be_read_costs_only_its_own(
        self, repository: Repository, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        repository.model("m")
        assert list(repository.read(tmp_path / "none")) == ["m"]
        assert "models in" in caplog.messages[0]


def test_our_own_models_are_described(caplog: pytest.LogCaptureFixture) -> None:
    project = Path(__file__).parents[4]
    found = ModelDescriptionFiles([project / "model_repository", project / "ensembles"], config_name="").read()
    assert "text_encoder" in found["text_embedding"].steps
    assert caplog.messages == []


class TestSharded:
    """Ensembles whose steps the gateway carries out."""

    ENSEMBLE = """
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [ {
  model_name: "part" model_version: 3 input_map { key: "x" value: "X" } output_map { key: "y" value: "Y" }
} ] }
"""

    def test_one_weighs_nothing_has_no_steps_to_load_and_keeps_no_replicas(self, repository: Repository) -> None:
        repository.model("whole", declaring(sharded="true", min_replicas="2") + self.ENSEMBLE)
        repository.model("part", files={"3/model.onnx": 300})
        found = repository.read()["whole"]
        assert (found.file_bytes, found.steps, found.spec.min_replicas) == (0, frozenset(), 0)

    def test_its_configuration_is_kept_as_triton_tells_it(self, repository: Repository) -> None:
        repository.model("whole", declaring(sharded="true") + self.ENSEMBLE)
        said = json.loads(repository.read()["whole"].spec.sharded)
        assert (said["name"], said["max_batch_size"], said["input"][0]["dims"]) == ("whole", 8, [-1])
        assert said["version_policy"] == {"latest": {"num_versions": 1}}
        step = said["ensemble_scheduling"]["step"][0]
        assert (step["model_version"], step["input_map"]) == (3, {"x": "X"})

    def test_steps_that_cannot_be_carried_out_are_warned_of_when_they_are_read(
        self, repository: Repository, caplog: pytest.LogCaptureFixture
    ) -> None:
        repository.model("whole", declaring(sharded="true") + self.ENSEMBLE.replace('value: "X"', 'value: "Q"'))
        assert repository.read()["whole"].spec.sharded
        assert "no step gives 'Q', which 'part' takes" in caplog.text

    def test_of_what_is_no_ensemble_it_is_left_out(self, repository: Repository, caplog: pytest.LogCaptureFixture) -> None:
        assert repository.spec(sharded="true") == ModelSpec("m")
        assert "tidegate_sharded is for ensembles" in caplog.text
        assert repository.spec(sharded="maybe") == ModelSpec("m")
