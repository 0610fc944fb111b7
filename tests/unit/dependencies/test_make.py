"""What `make` would do where nothing has been set up yet, by its own dry run."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from dependencies.sections import LOCK


def would_run(target: str, empty: Path) -> str:
    command = ["make", "--dry-run", "--no-print-directory", target, f"VENV={empty}/venv", f"WHEELS={empty}/wheels"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # that of `make test`
    done = subprocess.run(command, cwd=LOCK.parent, capture_output=True, text=True, timeout=60, check=True, env=environment)
    return done.stdout


def sections_installed(commands: str) -> list[str]:
    return re.findall(r"-m dependencies\.sections (\S+) \|", commands)


@pytest.mark.parametrize(
    ("target", "sections"),
    [
        pytest.param("serve", ["serve"], id="serve: no PyTorch, and nothing of the tests'"),
        pytest.param("setup", ["serve"], id="setup"),
        pytest.param("deploy", ["serve"], id="deploy"),
        pytest.param("models", ["serve", "torch", "torch-cpu", "torch-cuda"], id="models: every variant"),
    ],
)
def test_what_is_installed_on_an_empty_machine(tmp_path: Path, target: str, sections: list[str]) -> None:
    assert sections_installed(would_run(target, tmp_path)) == sections


@pytest.mark.parametrize("target", ["test", "check", "perf", "chaos", "docs", "lock"])
def test_what_gpus_need_is_installed_by_no_target(tmp_path: Path, target: str) -> None:
    assert "gpu" not in sections_installed(would_run(target, tmp_path))


def test_a_first_serve_builds_what_is_quick_and_the_rest_while_it_serves(tmp_path: Path) -> None:
    commands = would_run("serve", tmp_path)
    (build,) = re.findall(r"-m python_backends\.export .*", commands)
    assert "--quick" in build
    assert re.findall(r"^exec .*tidegate (serve .*\S)", commands, re.MULTILINE) == ["serve --build-models"]
    assert commands.index(build) < commands.index("tidegate serve")


def test_what_is_started_keeps_what_it_has_compiled() -> None:
    """Otherwise each of hundreds of processes that tests start compiles all modules anew."""
    command = ["make", "--no-print-directory", "--eval", "said:; @echo [$$PYTHONDONTWRITEBYTECODE]", "said"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=LOCK.parent, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert done.stdout == "[]\n"
