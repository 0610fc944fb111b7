"""What documents say of the code is there: paths, commands, options, settings, metrics, make's targets."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer.main

from control_plane.cli import command_line
from control_plane.settings import ENV_PREFIX, PROJECT_ROOT, effective, load_settings
from docs.generate import REFERENCE
from perf.scenarios import SCENARIOS

README, ARCHITECTURE = PROJECT_ROOT / "README.md", PROJECT_ROOT / "ARCHITECTURE.md"
WRITTEN = [README, ARCHITECTURE, *sorted(path for path in (PROJECT_ROOT / "docs").rglob("*.md") if path.parent != REFERENCE)]
WIDEST = 110
METRICS = (REFERENCE / "metrics.md").read_text()

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
LINK = re.compile(r"\]\(([^)\s#:]+)(?=[#\s)])")

# Flags of other programs, which documents name too.
FOREIGN = {
    *(
        "--http-header-forward-pattern",
        "--grpc-header-forward-pattern",
        "--model-control-mode",
        "--rate-limit",
        "--rate-limit-resource",
        "--http-thread-count",
        "--strict-readiness",
        "--allow-client-shm",
        "--http-max-input-size",
        "--http-address",
        "--grpc-address",
        "--http-restricted-api",
        "--grpc-restricted-protocol",
        "--exit-timeout-secs",
        "--backend-directory",
        "--load-model",
        "--grpc-max-connection-age",
        "--model-config-name",
        "--trace-config",
    ),
    *("--build-arg", "--namespace", "--wait-s", "--server-side"),
    *("--no-deps", "--require-hashes", "--constraint", "--shm-size", "--unix-socket", "--list"),
}

documents = pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(PROJECT_ROOT))) for path in WRITTEN])


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text())


def snippets(path: Path) -> list[str]:
    """All code, inline and in blocks, with each command on one line."""
    blocks = [block.replace("\\\n", " ") for language, block in FENCE.findall(path.read_text()) if language in ("sh", "console", "ini")]
    return [line for block in blocks for line in block.splitlines()] + [" ".join(each.split()) for each in INLINE.findall(prose(path))]


COMMANDS: Mapping[str, Any] = typer.main.get_command(command_line()).commands  # type: ignore[attr-defined]


def options(command: Any) -> set[str]:
    own = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    return own.union(*(options(each) for each in getattr(command, "commands", {}).values()))


OPTIONS = set().union(*map(options, COMMANDS.values()))


def calls(path: Path) -> Iterator[list[str]]:
    """What is written after `tidegate`, by words, up to where a shell, or a list of choices, goes on with something else."""
    for snippet in snippets(path):
        for found in re.findall(r"(?:^|[\s/$(])tidegate ([a-z][^|;&#)]*)", snippet):
            yield found.split()


@documents
def test_commands_and_their_options_exist(path: Path) -> None:
    for words in calls(path):
        command, rest = COMMANDS.get(words[0]), words[1:]
        assert command is not None, words
        if hasattr(command, "commands") and rest:
            command, rest = command.commands.get(rest[0]), rest[1:]
            assert command is not None, words
        named = {word.partition("=")[0].rstrip(",") for word in rest if word.startswith("--")}
        assert named <= options(command), words


@documents
def test_options_settings_and_metrics_exist(path: Path) -> None:
    text = "\n".join(snippets(path))
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text)) - OPTIONS - FOREIGN == set()
    variables = {ENV_PREFIX + name.upper() for name in effective(load_settings())}
    assert set(re.findall(r"TIDEGATE_[A-Z0-9_]*[A-Z0-9]", path.read_text())) <= variables
    reference = METRICS
    parameters = (PROJECT_ROOT / "control_plane" / "models" / "adapters" / "model_descriptions.py").read_text()
    names = set(re.findall(r"tidegate_[a-z0-9_]*[a-z0-9]", text))
    assert {name for name in names if name not in reference and name.removeprefix("tidegate_") not in parameters} == set()


@documents
def test_paths_in_the_tree_exist(path: Path) -> None:
    folders = {each.name for root in (PROJECT_ROOT, PROJECT_ROOT / "control_plane") for each in root.iterdir() if each.is_dir()}
    for each in INLINE.findall(prose(path)):
        if re.fullmatch(r"[\w./-]+/[\w./-]*", each) and each.partition("/")[0] in folders:
            assert is_there(each), each


def is_there(path: str) -> bool:
    return any((root / f"{path}{suffix}").exists() for root in (PROJECT_ROOT, PROJECT_ROOT / "control_plane") for suffix in ("", ".py"))


@documents
def test_links_lead_to_what_is_there(path: Path) -> None:
    assert [link for link in LINK.findall(prose(path)) if not (path.parent / link).exists()] == []


@documents
def test_lines_can_be_read_in_a_diff(path: Path) -> None:
    assert [line for line in prose(path).splitlines() if len(line) > WIDEST and not line.startswith("|")] == []


@pytest.mark.parametrize(("path", "most"), [(README, 120), (ARCHITECTURE, 200)], ids=["README", "ARCHITECTURE"])
def test_the_first_pages_stay_short(path: Path, most: int) -> None:
    assert len(path.read_text().splitlines()) <= most


@documents
def test_make_has_the_targets(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (PROJECT_ROOT / "Makefile").read_text(), re.MULTILINE))
    targets |= {f"perf-{name}" for name in SCENARIOS}
    named = {found for snippet in snippets(path) for found in re.findall(r"^(?:\$ )?make ([a-z-]+)", snippet)}
    assert named <= targets


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("```sh\n.venv/bin/tidegate models load NAME  # again\n```\n", [["models", "load", "NAME"]], id="a block"),
        pytest.param("```sh\nKEY=$(.venv/bin/tidegate keys list \\\n  --x)\n```\n", [["keys", "list", "--x"]], id="two lines"),
        pytest.param("So `tidegate fleet\n--watch` shows it.", [["fleet", "--watch"]], id="in a sentence"),
        pytest.param("`tidegate keys list | rotate ID`", [["keys", "list"]], id="choices"),
        pytest.param("`Tidegate` is not `/run/tidegate/http.sock`", [], id="none"),
    ],
)
def test_calls_are_found(tmp_path: Path, text: str, found: list[list[str]]) -> None:
    (tmp_path / "page.md").write_text(text)
    assert list(calls(tmp_path / "page.md")) == found


def test_no_file_has_the_marks_of_a_merge_that_nobody_finished() -> None:
    if not (PROJECT_ROOT / ".git").exists():
        pytest.skip("only a checkout knows which files are ours")
    found = subprocess.run(["git", "grep", "-InE", "^(<{7}|>{7}) "], cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=50)
    assert (found.returncode, found.stdout) == (1, ""), found.stderr


@pytest.mark.parametrize("capability", sorted(each.parent.name for each in (PROJECT_ROOT / "control_plane").glob("*/__init__.py")))
def test_a_capability_says_what_it_is_for_and_names_parts_that_are_there(capability: str) -> None:
    folder = PROJECT_ROOT / "control_plane" / capability
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    assert said, f"{folder.name}/__init__.py: a paragraph on what it is for"
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)*)`", said)
    assert [
        each
        for each in named
        if not any((root / each).with_suffix(end).exists() for root in (folder, folder.parent) for end in ("", ".py"))
    ] == []
