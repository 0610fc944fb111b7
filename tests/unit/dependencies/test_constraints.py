"""`constraints.txt` pins every installed package, and pip refuses files whose digest it lacks."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from dependencies.sections import LOCK, SECTIONS, main, read_sections, requirements

PROJECT = LOCK.parent
TEXT = LOCK.read_text()
ENTRIES = [(section, entry) for section, part in read_sections(TEXT).items() for entry in requirements(part)]

# Of PyTorch's two builds a machine has the one or the other.
EITHER = {"torch-cpu", "torch-cuda"}
# What only machines with an NVIDIA GPU have; `gpu` has packages of `torch-cuda` again.
OF_A_GPU = {*EITHER, "gpu"}

# Makes the environment, and is of the Python that it was made with; the project itself.
NOT_PINNED = {"pip", "tidegate"}


def parsed(entry: str) -> Requirement:
    return Requirement(entry.partition(" --hash=")[0].removesuffix("\\").strip())


def pinned(requirement: Requirement) -> Version:
    (specifier,) = requirement.specifier
    assert specifier.operator == "==", requirement
    return Version(specifier.version)


PINS = [(section, parsed(entry)) for section, entry in ENTRIES]
HERE = {canonicalize_name(pin.name): pinned(pin) for section, pin in PINS if pin.marker is None or pin.marker.evaluate()}


def test_every_package_has_a_version_and_the_digests_of_its_files() -> None:
    assert ENTRIES
    for _, entry in ENTRIES:
        assert pinned(parsed(entry)), entry
        options = entry.partition(" --hash=")[1:]
        digests = "".join(options).split()
        assert digests, entry
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", digest) for digest in digests), entry


def test_every_section_is_there_and_has_its_packages_alone() -> None:
    assert list(read_sections(TEXT)) == list(SECTIONS)
    for section in SECTIONS:
        assert any(section == its for its, _ in ENTRIES)
    places = {(canonicalize_name(pin.name), "torch" if section in OF_A_GPU else section) for section, pin in PINS}
    assert [name for name, count in Counter(name for name, _ in places).items() if count > 1] == []


def test_serving_needs_no_pytorch_and_nothing_of_cudas() -> None:
    """These are gigabytes, and what a first `make serve` answers with needs none of them."""
    needed = {canonicalize_name(pin.name) for section, pin in PINS if section == "serve"}
    assert {"onnxruntime", "tokenizers"} <= needed
    assert [name for name in sorted(needed) if re.fullmatch(r"torch.*|triton|transformers|nvidia-.*|cuda-.*", name)] == []


def test_tensorrt_is_complete_and_of_the_version_whose_api_is_used() -> None:
    """Without PyTorch, which would bring gigabytes for the same calls, and with one pin for all platforms of a package."""
    found = {canonicalize_name(pin.name): pinned(pin) for section, pin in PINS if section == "gpu"}
    assert found.keys() == {"tensorrt-cu13", "tensorrt-cu13-bindings", "tensorrt-cu13-libs", "cuda-bindings", "cuda-pathfinder"}
    assert {version for name, version in found.items() if name.startswith("tensorrt")} == {found["tensorrt-cu13"]}
    assert found["tensorrt-cu13"].major == 10
    assert found["cuda-bindings"].major == 13
    elsewhere = {canonicalize_name(pin.name): pinned(pin) for section, pin in PINS if section == "torch-cuda"}
    assert all(elsewhere[name] == found[name] for name in found.keys() & elsewhere.keys())


def test_nothing_says_where_packages_come_from() -> None:
    assert not re.search(r"://|--(extra-)?index|--find-links|/(opt|work|home|root)/", TEXT)


def declared() -> list[Requirement]:
    """All that pyproject.toml asks for, whatever the extra."""
    document = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    project = document["project"]
    groups = [document["build-system"]["requires"], project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(each) for group in groups for each in group]


def test_what_the_project_asks_for_is_pinned() -> None:
    for requirement in declared():
        if requirement.marker is None or requirement.marker.evaluate():
            assert HERE[canonicalize_name(requirement.name)] in requirement.specifier, f"{requirement}: run `make lock`"


def test_what_is_installed_is_what_is_pinned() -> None:
    installed = {canonicalize_name(each.name): Version(each.version) for each in distributions()}
    wanted = {canonicalize_name(pin.name) for section, pin in PINS if section not in OF_A_GPU} & HERE.keys() | {"torch"}
    assert wanted <= installed.keys(), "run `make check`"
    found = {name: version.public for name, version in installed.items() if name not in NOT_PINNED}
    assert found == {name: HERE[name].public for name in found}


def test_a_section_is_printed_for_pip(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["torch-cpu", "extras"]) == 0
    printed = capsys.readouterr().out
    assert re.match(r"torch==\S+\+cpu \\\n    --hash=sha256:[0-9a-f]{64}\n\S+==", printed)
    assert len(list(requirements(printed))) == sum(section in {"torch-cpu", "extras"} for section, _ in ENTRIES)


def test_a_section_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "nonesuch"]) == 1
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"error: no section 'nonesuch' in constraints.txt: there are {', '.join(SECTIONS)}\n")


@pytest.mark.skipif(not any(distributions(name="pip")), reason="an environment without pip")
@pytest.mark.parametrize("is_tampered_with", [False, True])
def test_pip_refuses_a_file_of_another_digest(tmp_path: Path, is_tampered_with: bool) -> None:
    wheel = tmp_path / "it-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("it-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: it\nVersion: 1.0\n")
        archive.writestr("it-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("it-1.0.dist-info/RECORD", "")
    digest = subprocess.run(["sha256sum", wheel], capture_output=True, text=True, check=True).stdout.split()[0]
    (makefile,) = re.findall(r"^install = .*\| \$\(PIP\) (install .*) /dev/stdin$", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    command = [
        sys.executable,
        "-m",
        "pip",
        *makefile.split(),
        "/dev/stdin",
        "--no-index",
        "--find-links",
        tmp_path,
        "--target",
        tmp_path / "t",
    ]

    given = f"it==1.0 --hash=sha256:{'0' * 64 if is_tampered_with else digest}\n"
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, (tmp_path / "t" / "it-1.0.dist-info").exists()) == ((1, False) if is_tampered_with else (0, True)), done.stderr
    assert ("DO NOT MATCH THE HASHES" in done.stderr) == is_tampered_with
