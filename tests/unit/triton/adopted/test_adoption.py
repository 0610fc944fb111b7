"""Adoption of a Triton that others have started: over real sockets, one that is unfit is refused with what would be right."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from control_plane.core.errors import StartupError
from control_plane.triton.adopted.adoption import Adoption
from control_plane.triton.ports import Upstream
from tests.aio import run
from tests.unit.triton.adopted.scripted import Theirs, client, triton

SECRET = "the secret of Triton's calls for models"


@dataclass
class Outcome:
    """What the adoption told."""

    locked: list[bool] = field(default_factory=list)
    loaded_at_restore: list[set[str]] = field(default_factory=list)


def adopt(theirs: Theirs, *, ours: Path | None = None, secret: str = SECRET, times: int = 1) -> Outcome:
    outcome = Outcome()

    async def restore(upstream: Upstream) -> None:
        outcome.loaded_at_restore.append({name for name, state in theirs.loaded.items() if state != "UNAVAILABLE"})

    async def main() -> None:
        async with triton(theirs):
            endpoints = theirs.endpoints(secret)
            adoption = Adoption(endpoints, ours or theirs.repository, outcome.locked.append, restore, unload_timeout_s=2.0)
            for _ in range(times):
                async with client(endpoints) as upstream:
                    await adoption(upstream)

    run(main())
    return outcome


def test_one_that_is_locked_and_explicit_is_emptied_and_taken(tmp_path: Path) -> None:
    theirs = Theirs(tmp_path, secret=SECRET, loaded={"left": "READY", "going": "UNLOADING", "coming": "LOADING"})
    assert adopt(theirs) == Outcome([True], [{"going"}])
    assert {"left", "coming"} <= set(theirs.unloaded)
    assert list(tmp_path.iterdir()) == [], "what it was tried with is gone"


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_one_in_another_mode_is_refused(tmp_path: Path, mode: str) -> None:
    with pytest.raises(StartupError, match="lets nobody load models: start it with --model-control-mode=explicit"):
        adopt(Theirs(tmp_path, secret=SECRET, mode=mode))


def test_one_that_loads_from_elsewhere_is_refused(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    (theirs := tmp_path / "theirs").mkdir()
    with pytest.raises(StartupError, match=f"start it with --model-repository={ours}"):
        adopt(Theirs(theirs, secret=SECRET), ours=ours)


@pytest.mark.parametrize("secret", ["", "another secret than that one"])
def test_one_that_refuses_our_secret_is_refused(tmp_path: Path, secret: str) -> None:
    with pytest.raises(StartupError, match="refuses the secret of --attach-secret-file"):
        adopt(Theirs(tmp_path, secret=SECRET), secret=secret)
    assert list(tmp_path.iterdir()) == []


def test_a_repository_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (blocked := tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match=f"{blocked} cannot be written: Not a directory"):
        adopt(Theirs(tmp_path, secret=SECRET), ours=blocked)


@pytest.mark.parametrize(
    ("grpc_secret", "is_http_locked", "ours", "lacks"),
    [
        pytest.param("", False, "", "it has no secret", id="no secret at all"),
        pytest.param("", False, SECRET, "--grpc-restricted-protocol and --http-restricted-api", id="no lock"),
        pytest.param("", True, SECRET, "start it with --grpc-restricted-protocol", id="gRPC is open"),
        pytest.param(SECRET, False, SECRET, "start it with --http-restricted-api", id="HTTP is open"),
    ],
)
def test_one_into_which_others_may_load_is_taken_with_a_warning_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, grpc_secret: str, is_http_locked: bool, ours: str, lacks: str
) -> None:
    with caplog.at_level(logging.WARNING):
        outcome = adopt(Theirs(tmp_path, secret=grpc_secret, is_http_locked=is_http_locked), secret=ours, times=2)
    assert outcome.locked == [False, False]
    assert [record.getMessage().endswith(lacks) or lacks in record.getMessage() for record in caplog.records] == [True]


def test_one_that_never_ends_loading_is_given_up(tmp_path: Path) -> None:
    class Busy(Theirs):
        async def unload(self, message: bytes, context: object) -> bytes:
            self.unloaded.append("")
            return b""

    with pytest.raises(StartupError, match="goes on loading what others asked for: huge"):
        adopt(Busy(tmp_path, secret=SECRET, loaded={"huge": "LOADING"}))
