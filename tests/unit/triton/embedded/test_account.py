from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.core.errors import StartupError
from control_plane.triton.embedded.account import Account, find_account, grant_traversal, require_reach

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
SYSTEM = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a folder that every user can reach; pytest's own may be closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-account-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_an_account_is_a_user_with_all_its_groups() -> None:
    found = find_account("nobody", our_uid=0)
    assert found.uid > 0
    assert found.gid in found.groups
    assert found.identity == f"{found.uid}:{found.gid}:{','.join(map(str, found.groups))}"
    assert found.environment == {"HOME": found.home, "USER": "nobody", "LOGNAME": "nobody"}


@pytest.mark.parametrize(
    ("name", "our_uid", "says"),
    [
        pytest.param("nobody", 1000, "--triton-user nobody: only root may start processes as another user", id="we are not root"),
        pytest.param("no-such-user", 0, "--triton-user no-such-user: this machine has no such user", id="unknown"),
        pytest.param("root", 0, "--triton-user root: that is root", id="root"),
    ],
)
def test_who_cannot_be_become(name: str, our_uid: int, says: str) -> None:
    with pytest.raises(StartupError, match=says):
        find_account(name, our_uid=our_uid)


@as_root
@pytest.mark.parametrize(
    ("mode", "becomes", "is_its_group"),
    [
        pytest.param(0o700, 0o710, True, id="ours alone: its group goes through"),
        pytest.param(0o755, 0o755, False, id="open to all"),
        pytest.param(0o750, 0o750, False, id="of a group that somebody chose"),
    ],
)
def test_only_what_was_ours_alone_is_opened_and_only_to_go_through(tmp_path: Path, mode: int, becomes: int, is_its_group: bool) -> None:
    account = find_account("nobody")
    tmp_path.chmod(mode)
    grant_traversal(account, [tmp_path])
    grant_traversal(account, [tmp_path])
    assert tmp_path.stat().st_mode & 0o7777 == becomes
    assert (tmp_path.stat().st_gid == account.gid) is is_its_group


@as_root
def test_what_it_cannot_read_is_named(open_folder: Path) -> None:
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(StartupError, match=f"that user cannot read {closed}/models: give it the right"):
        require_reach(find_account("nobody"), [open_folder, closed / "models"], SYSTEM)


@as_root
def test_a_python_that_it_cannot_run_is_told(open_folder: Path) -> None:
    python = open_folder / "python3"
    python.write_text("#!/bin/sh\necho no numpy here >&2; exit 1")
    python.chmod(0o755)
    with pytest.raises(StartupError, match=r"that user cannot run this Python .* with numpy: no numpy here"):
        require_reach(find_account("nobody"), [open_folder], {"PATH": f"{open_folder}:/usr/bin:/bin"})


@as_root
def test_one_that_reaches_everything_passes(open_folder: Path) -> None:
    python = open_folder / "python3"
    python.write_text(f"#!/bin/sh\nexec /usr/bin/id -nu > {open_folder}/said")
    python.chmod(0o755)
    open_folder.chmod(0o777)
    require_reach(find_account("nobody"), [open_folder, python], {"PATH": f"{open_folder}:/usr/bin:/bin"})
    assert (open_folder / "said").read_text() == "nobody\n"


def test_an_account_can_be_told_from_another() -> None:
    assert Account("a", 1, 2, (2, 3), "/a").identity == "1:2:2,3"
