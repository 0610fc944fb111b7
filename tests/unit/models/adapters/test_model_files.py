"""Digests of models' files, on real files that are placed as the gateway places them."""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from control_plane.core.errors import ModelLoadFailed
from control_plane.core.model import ModelOverride
from control_plane.models.adapters import model_files
from control_plane.models.adapters.managed_repository import ManagedRepository
from control_plane.models.adapters.model_files import FileDigests, ModelFiles
from control_plane.settings import PROJECT_ROOT

NATIVE = 'backend: "native"\n'
ENSEMBLE = 'platform: "ensemble"\nensemble_scheduling {{ step [ {} ] }}\n'


class Lab:
    """Source folder with a model `m` of version 1 and two ensembles of it, and a folder of backends."""

    def __init__(self, tmp_path: Path) -> None:
        self.sources, self.backends, self.state = tmp_path / "models", tmp_path / "python_backends", tmp_path / "state"
        self.write("m/config.pbtxt", NATIVE)
        self.write("m/1/weights", "first")
        self.write("e/config.pbtxt", ENSEMBLE.format('{ model_name: "m" }, { model_name: "m" }'))
        self.write("ee/config.pbtxt", ENSEMBLE.format('{ model_name: "e" }'))
        for path in ("__init__.py", "ours/model.py", "shared/code.py"):
            self.write(path, "x = 1", root=self.backends)
        self.repository = ManagedRepository([self.sources], self.state, config_name="gpu")
        self.files = ModelFiles(self.repository.root, config_name="gpu", python_backends=self.backends)

    def write(self, path: str, text: str, *, root: Path | None = None) -> Path:
        file = (root or self.sources) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def configure(self, *lines: str) -> None:
        self.write("m/config.pbtxt", "\n".join(lines))

    def digest(self, name: str = "m", override: ModelOverride | None = None) -> bytes:
        self.repository.place_all()
        return self.files.read(name, override).digest


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def parameter(value: str) -> str:
    return f'parameters {{ key: "p" value: {{ string_value: "{value}" }} }}'


def same_size_and_time(file: Path, text: str) -> None:
    before = file.stat()
    file.write_text(text)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


class TestDigest:
    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda lab: lab.write("m/1/weights", "second"), id="a file"),
            pytest.param(lambda lab: same_size_and_time(lab.sources / "m/1/weights", "FIRST"), id="a file, of the same size and time"),
            pytest.param(lambda lab: lab.write("m/1/deep/down/labels", ""), id="a new one, deep down"),
            pytest.param(lambda lab: (lab.sources / "m/1/weights").unlink(), id="one less"),
            pytest.param(lambda lab: (lab.sources / "m/1/weights").rename(lab.sources / "m/1/weight"), id="a name"),
            pytest.param(lambda lab: lab.write("m/2/weights", "first"), id="another version"),
            pytest.param(lambda lab: lab.configure(NATIVE, "max_batch_size: 2"), id="its configuration"),
            pytest.param(lambda lab: lab.write("m/configs/gpu.pbtxt", NATIVE), id="a configuration for another hardware"),
        ],
    )
    def test_of_a_model_changes_with(self, lab: Lab, change: Callable[[Lab], object]) -> None:
        before = lab.digest()
        change(lab)
        assert lab.digest() != before

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda lab: os.utime(lab.sources / "m/1/weights"), id="a time"),
            pytest.param(lambda lab: lab.write("m/README.md", "x"), id="what is not for Triton"),
            pytest.param(lambda lab: lab.write("other/1/weights", "x"), id="another model"),
            pytest.param(lambda lab: lab.write("shared/code.py", "x = 2", root=lab.backends), id="code that native backends do not run"),
        ],
    )
    def test_of_a_model_does_not_change_with(self, lab: Lab, change: Callable[[Lab], object]) -> None:
        before = lab.digest()
        change(lab)
        assert lab.digest() == before

    def test_is_the_same_in_another_place(self, lab: Lab, tmp_path: Path) -> None:
        lab.configure('backend: "ours"')
        before = lab.digest()
        other = Lab(tmp_path / "elsewhere")
        other.configure('backend: "ours"')
        assert other.digest() == before

    @pytest.mark.parametrize("backend", ['backend: "ours"', 'backend: "python"', ""])
    def test_of_what_stubs_serve_changes_with_the_code_that_they_share(self, lab: Lab, backend: str) -> None:
        lab.configure(backend)
        before = lab.digest()
        lab.write("ours/__pycache__/model.pyc", "", root=lab.backends)
        assert lab.digest() == before
        lab.write("shared/code.py", "x = 2", root=lab.backends)
        assert lab.digest() != before

    def test_of_what_stubs_serve_changes_with_what_is_installed_and_the_machine(self, lab: Lab) -> None:
        assert {b"flags", b"Features"} & {line[: line.find(b"\t")] for line in model_files._machine()}
        assert any(name.startswith(b"numpy-") for name in model_files._installed())
        other = ModelFiles(lab.repository.root, config_name="gpu", python_backends=lab.backends, surroundings=lambda: [b"another"])
        assert lab.digest() == other.read("m", None).digest
        lab.configure('backend: "ours"')
        assert lab.digest() != other.read("m", None).digest

    def test_of_an_ensemble_is_its_own_only(self, lab: Lab) -> None:
        before = lab.digest("e")
        lab.write("m/1/weights", "second")
        lab.write("shared/code.py", "x = 2", root=lab.backends)
        assert lab.digest("e") == before

    def test_of_a_model_that_is_not_there_is_that_of_nothing(self, lab: Lab) -> None:
        with pytest.raises(ModelLoadFailed, match="nowhere"):
            lab.digest("nowhere")

    def test_a_link_that_leads_nowhere_and_one_to_a_device_are_no_contents(self, lab: Lab) -> None:
        (lab.sources / "m/1/gone").symlink_to(lab.sources / "nowhere")
        (lab.sources / "m/1/null").symlink_to("/dev/null")
        lab.digest()

    def test_a_configuration_that_cannot_be_read_is_told(self, lab: Lab) -> None:
        lab.repository.place_all()
        lab.configure("nonsense")
        with pytest.raises(ModelLoadFailed, match=r"config\.pbtxt:1:1"):
            lab.files.read("m", None)


class TestParameters:
    @pytest.mark.parametrize("value", ["../../t/1/words", "$$TRITON_MODEL_DIRECTORY/../t/1/words", "{sources}/t/1/words"])
    def test_that_name_a_file_elsewhere_stand_for_what_it_holds(self, lab: Lab, value: str) -> None:
        file = lab.write("t/1/words", "first")
        lab.configure(NATIVE, parameter(value.format(sources=lab.sources)))
        before = lab.digest()
        file.write_text("second")
        after = lab.digest()
        file.unlink()
        assert len({before, after, lab.digest()}) == 3

    @pytest.mark.parametrize("value", ["2", "weights", "..", ".", "auto", "x" * 5000, "a\\000b", "../../nowhere"])
    def test_that_name_nothing_elsewhere_are_only_words(self, lab: Lab, value: str) -> None:
        lab.configure(NATIVE, parameter(value))
        lab.digest()

    @pytest.mark.parametrize("value", ["../../t", "/tmp", "../.."])
    def test_that_name_a_folder_leave_nothing_certain(self, lab: Lab, value: str) -> None:
        lab.write("t/1/words", "")
        lab.configure(NATIVE, parameter(value))
        with pytest.raises(ModelLoadFailed, match="names the folder"):
            lab.digest()

    def test_are_among_the_contents(self, lab: Lab) -> None:
        lab.configure(NATIVE, parameter("x"))
        lab.repository.place_all()
        contents = lab.files.read("m", None)
        assert (contents.parameters, contents.steps) == ({"x"}, frozenset())


class TestSteps:
    def test_are_followed_as_the_configurations_name_them(self, lab: Lab) -> None:
        lab.repository.place_all()
        assert sorted(lab.files.ensemble_closure("ee", None)) == ["e", "ee", "m"]
        assert lab.files.ensemble_closure("m", None) == ["m"]
        assert lab.files.ensemble_closure("nowhere", None) == ["nowhere"]
        assert lab.files.read("e", None).steps == {"m"}

    def test_are_those_of_the_configuration_that_is_brought(self, lab: Lab) -> None:
        lab.repository.place_all()
        override = ModelOverride(config='{"ensembleScheduling": {"step": [{"modelName": "ee"}]}, "unheard_of": 1}')
        assert sorted(lab.files.ensemble_closure("new", override)) == ["e", "ee", "m", "new"]
        assert lab.files.read("m", override).steps == {"ee"}

    @pytest.mark.parametrize("config", ["{", '{"backend": 1}', "1", "null", '{"parameters": 1}', "[[]]"])
    def test_of_a_configuration_that_is_none_are_not_known(self, lab: Lab, config: str) -> None:
        with pytest.raises(ModelLoadFailed, match="cannot be read"):
            lab.files.ensemble_closure("m", ModelOverride(config=config))


class TestBrought:
    def test_files_stand_for_those_of_the_repository(self, lab: Lab) -> None:
        override = ModelOverride(config="{}", files={"file:1/weights": b"x"})
        before = lab.digest(override=override)
        lab.write("m/1/weights", "second")
        assert lab.digest(override=override) == before
        assert lab.files.read("m", override).comes_with_load
        others = ({"file:1/weights": b"y"}, {"file:2/weights": b"x"}, {"file:1/weights": b"x", "file:1/more": b""})
        assert len({before, *(lab.digest(override=ModelOverride(config="{}", files=files)) for files in others)}) == 4

    def test_a_configuration_alone_leaves_the_repositorys_files(self, lab: Lab) -> None:
        override = ModelOverride(config='{"backend": "native"}')
        before = lab.digest(override=override)
        lab.write("m/1/weights", "second")
        assert lab.digest(override=override) != before
        assert not lab.files.read("m", override).comes_with_load


class TestCallingOthers:
    """BLS calls in code that a stub runs, whichever way the server's class is imported."""

    CALL = "answer = pb_utils.InferenceRequest(model_name='x').exec()"

    def calls(self, lab: Lab, override: ModelOverride | None = None) -> bool:
        lab.repository.place_all()
        return lab.files.read("m", override).calls_others

    @pytest.mark.parametrize("backend", ["python", "ours"])
    @pytest.mark.parametrize(
        "code",
        [
            CALL,
            "from triton_python_backend_utils import (\n    Tensor,\n    InferenceRequest,\n)",
            "from triton_python_backend_utils \\\n  import *",
            "request = getattr(pb_utils, 'InferenceRequest')",
            "request = pb_utils. \\\n InferenceRequest",
        ],
    )
    def test_is_found_in_every_source_of_every_version(self, lab: Lab, backend: str, code: str) -> None:
        lab.configure(f'backend: "{backend}"')
        assert not self.calls(lab)
        file = lab.write("m/2/deep/helper.py", code)
        assert self.calls(lab)
        file.unlink()
        assert not self.calls(lab)
        lab.write("shared/code.py", code, root=lab.backends)
        assert self.calls(lab), "every stub can import it"

    def test_is_found_in_what_a_parameter_names(self, lab: Lab) -> None:
        lab.write("t/1/rules.py", self.CALL)
        lab.configure('backend: "python"', parameter("../../t/1/rules.py"))
        assert self.calls(lab)

    def test_is_found_in_what_is_brought_and_there_only(self, lab: Lab) -> None:
        files = {"file:1/model.py": self.CALL.encode()}
        assert self.calls(lab, ModelOverride('{"backend": "python"}', files))
        lab.configure('backend: "python"')
        lab.write("m/1/model.py", self.CALL)
        assert not self.calls(lab, ModelOverride('{"backend": "python"}', {"file:1/model.py": b""}))

    def test_is_not_what_native_backends_and_ensembles_do_nor_what_answers(self, lab: Lab) -> None:
        lab.write("m/1/model.py", self.CALL)
        lab.write("e/1/model.py", self.CALL)
        assert not self.calls(lab)
        assert not lab.files.read("e", None).calls_others
        lab.configure('backend: "python"')
        lab.write("m/1/model.py", "import triton_python_backend_utils\nimport numpy\npb_utils.InferenceResponse()")
        assert not self.calls(lab)

    @pytest.mark.parametrize("name", sorted(entry.name for entry in (PROJECT_ROOT / "model_repository").iterdir()))
    def test_is_not_what_our_own_models_do(self, tmp_path: Path, name: str) -> None:
        source = tmp_path / "models" / name
        shutil.copytree(PROJECT_ROOT / "model_repository" / name, source, ignore=shutil.ignore_patterns("1", ".*", "texts"))
        (source / "1").mkdir()  # what is built has no code in it
        (source / "1/weights").touch()
        repository = ManagedRepository([source.parent], tmp_path / "state", config_name="")
        repository.place_all()
        files = ModelFiles(repository.root, config_name="", python_backends=PROJECT_ROOT / "python_backends", surroundings=list)
        assert not files.read(name, None).calls_others


class TestLookingChanged:
    def test_is_being_newer_than_everything_in_it(self, lab: Lab) -> None:
        lab.repository.place_all()
        future_ns = time.time_ns() + 10**15
        os.utime(lab.sources / "m/1/weights", ns=(future_ns, future_ns))
        before = lab.digest()
        lab.files.mark_changed("m")
        version = lab.repository.root / "m/1"
        assert version.stat().st_mtime_ns == future_ns + 1
        lab.files.mark_changed("m")
        assert version.stat().st_mtime_ns == future_ns + 2
        assert lab.digest() == before

    def test_is_being_newer_than_what_was_read_earlier(self, lab: Lab) -> None:
        future_ns = time.time_ns() + 10**15
        os.utime(lab.sources / "m/1/weights", ns=(future_ns, future_ns))
        lab.digest()
        lab.write("m/1/weights", "second")
        lab.files.mark_changed("m")
        assert (lab.repository.root / "m/1").stat().st_mtime_ns == future_ns + 1

    def test_touches_no_source(self, lab: Lab) -> None:
        lab.repository.place_all()
        before = {path: path.stat().st_mtime_ns for path in lab.sources.rglob("*")}
        lab.files.mark_changed("m")
        assert {path: path.stat().st_mtime_ns for path in lab.sources.rglob("*")} == before

    def test_of_what_is_not_placed_is_told(self, lab: Lab) -> None:
        with pytest.raises(ModelLoadFailed):
            lab.files.mark_changed("nowhere")


class TestFileDigests:
    def test_a_file_that_has_settled_is_read_once(self, tmp_path: Path) -> None:
        digests, file = FileDigests(settled_ns=0), tmp_path / "x"
        file.write_text("1")
        digests.of(file)
        digests._known._kept.update(dict.fromkeys(digests._known._kept, b"remembered"))
        assert digests.of(file) == b"remembered"
        same_size_and_time(file, "2")
        assert digests.of(file) != b"remembered"
        shutil.copy2(file, tmp_path / "y")
        digests._known._kept.update(dict.fromkeys(digests._known._kept, b"remembered"))
        os.replace(tmp_path / "y", file)
        assert digests.of(file) != b"remembered"

    def test_one_that_has_just_been_written_is_read_again(self, tmp_path: Path) -> None:
        digests, file = FileDigests(), tmp_path / "x"
        file.write_text("1")
        digests.of(file)
        assert not digests._known.keys

    def test_one_that_changes_while_it_is_read_is_an_error(self, tmp_path: Path) -> None:
        file = Growing(tmp_path / "x")
        file.write_text("1")
        with pytest.raises(OSError, match="changes while it is read"):
            FileDigests().of(file)

    def test_what_is_remembered_is_bounded(self, tmp_path: Path) -> None:
        digests = FileDigests(settled_ns=0, most=2)
        for name in "abc":
            (tmp_path / name).write_text(name)
            digests.of(tmp_path / name)
        assert len(digests._known._kept) == 2


class Growing(type(Path())):  # type: ignore[misc]
    """A file that another program writes to while it is read."""

    def open(self, mode: str = "r", *rest: object, **more: object) -> object:
        return _Growing(self) if mode == "rb" else super().open(mode, *rest, **more)


class _Growing(io.FileIO):
    def readinto(self, buffer: object) -> int | None:
        if self.tell() == 0:
            with open(self.name, "a") as writer:
                writer.write("more")
        return super().readinto(buffer)  # type: ignore[arg-type]
