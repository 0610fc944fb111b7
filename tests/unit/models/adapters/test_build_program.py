"""The build program, run for real on recipes that the tests write."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from pathlib import Path

import pytest

from control_plane.models.adapters.build_program import ModelBuildProgram
from control_plane.models.domain.model_build import BuildEvent, BuildEventKind
from tests.aio import run
from tests.unit.python_backends.export.recipes import model_folder, variants_folder

BEGUN, STEP, BUILT, SKIPPED, FAILED = BuildEventKind


async def told(program: ModelBuildProgram) -> list[BuildEvent]:
    async with aclosing(program.build()) as events:
        return [event async for event in events if event.kind is not STEP]


@pytest.mark.timeout(120)
def test_what_is_not_up_to_date_is_built_and_told_in_every_repository(tmp_path: Path) -> None:
    variants_folder(tmp_path / "one", "m", fp32={}, bad={"cosine_p1": 0.5}, engine={"needs": "it needs a GPU"})
    model_folder(tmp_path / "two", "tokenizer")
    (tmp_path / "two" / "no_recipe").mkdir()
    program = ModelBuildProgram([tmp_path / "one", tmp_path / "two", tmp_path / "nowhere"])

    events = run(told(program))

    assert [(event.kind, event.model, event.variant, event.is_auto_eligible) for event in events] == [
        (BEGUN, "m", "fp32", False),
        (BUILT, "m", "fp32", True),
        (BEGUN, "m", "bad", False),
        (FAILED, "m", "bad", False),
        (SKIPPED, "m", "engine", False),
        (BEGUN, "tokenizer", "", False),
        (BUILT, "tokenizer", "", True),
    ]
    assert "below 0.99" in events[3].text


def test_without_recipes_nothing_is_started(tmp_path: Path) -> None:
    assert run(told(ModelBuildProgram([tmp_path]))) == []


def test_a_build_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    model_folder(tmp_path, then="print('about to die', flush=True); import os; os._exit(7)")

    assert run(told(ModelBuildProgram([tmp_path])))[-1] == BuildEvent(FAILED, text="the build ended with exit status 7: about to die")


def test_recipes_inherit_no_secrets_of_ours(tmp_path: Path) -> None:
    model_folder(tmp_path, then=f"import os; Path({str(tmp_path / 'seen')!r}).write_text(' '.join(sorted(os.environ)))")
    environment = {**os.environ, "TIDEGATE_STATE_URL": "redis://:secret@host", "AWS_SECRET_ACCESS_KEY": "secret", "KEPT": "1"}

    assert run(told(ModelBuildProgram([tmp_path], environment=environment)))[-1].kind is BUILT

    seen = (tmp_path / "seen").read_text().split()
    assert ("KEPT" in seen, [name for name in seen if name.startswith(("TIDEGATE_", "AWS_"))]) == (True, [])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_who_stops_listening_ends_it_and_what_it_has_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    model_folder(
        tmp_path,
        then=f"""
        import os, subprocess
        child = subprocess.Popen(["sleep", "60"])
        Path({str(pids)!r} + ".new").write_text(f"{{os.getpid()}} {{child.pid}}")
        os.rename({str(pids)!r} + ".new", {str(pids)!r})
        child.wait()
        """.replace("{{", "{").replace("}}", "}"),
    )

    async def main() -> list[int]:
        async with aclosing(ModelBuildProgram([tmp_path]).build()) as events:
            await anext(events)
            while not pids.exists():
                await asyncio.sleep(0.02)
            return [int(pid) for pid in pids.read_text().split()]

    for pid in await main():
        while is_running(pid):
            await asyncio.sleep(0.02)
