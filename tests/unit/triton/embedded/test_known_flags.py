"""Flags of Tritons of other versions: what is too old is refused, and newer ones are made to behave as the others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from control_plane.core.errors import StartupError
from control_plane.triton.embedded.known_flags import known_flags, of_this_version, require_known, require_ours


def program(folder: Path, text: str) -> Path:
    path = folder / "tritonserver"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


def test_the_flags_are_those_that_its_help_lists_on_either_output(tmp_path: Path) -> None:
    help_ = "import sys; print('  --one <x>\\n\\tas --two'); sys.exit('  --three')"
    assert known_flags(program(tmp_path, help_), {}) == {"--one", "--three"}


def test_one_that_cannot_be_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot run"):
        known_flags(tmp_path / "none", {})


def test_an_operators_flag_is_known_by_its_whole_name_only() -> None:
    require_known(["--one=1"], {"--one"})
    with pytest.raises(StartupError, match=r"--triton-arg --on=1: Triton has no such flag"):
        require_known(["--one=1", "--on=1"], {"--one"})


def test_one_without_our_flags_is_too_old() -> None:
    command = ["/opt/tritonserver", "--http-port=1", "--http-restricted-api=a", "--http-restricted-api=b"]
    require_ours(command, {"--http-port", "--http-restricted-api"})
    with pytest.raises(StartupError, match=r"--tritonserver /opt/tritonserver: it does not know --http-restricted-api; use release 24.10"):
        require_ours(command, {"--http-port"})


@pytest.mark.parametrize(
    ("known", "added"),
    [
        pytest.param({"--http-port"}, [], id="24.10"),
        pytest.param({"--http-port", "--allow-client-shm"}, ["--allow-client-shm=true"], id="26.05, where clients' memory is off"),
    ],
)
def test_newer_ones_behave_as_the_others(known: set[str], added: list[str]) -> None:
    assert of_this_version(known) == added
