from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.core.errors import StartupError
from control_plane.host.network.unix_socket import UnixSocket


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "http.sock"


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct)
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def bind(path: Path) -> UnixSocket:
    return UnixSocket(path, setting="--http-socket")


def is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@pytest.mark.usefixtures("_umask")
def test_nobody_else_may_ever_open_it(path: Path) -> None:
    bound = bind(path)
    assert stat.S_IMODE(path.stat().st_mode) & ~0o600 == 0
    bound.remove()


def test_its_owner_may_and_waits_until_it_is_accepted(path: Path) -> None:
    bound = bind(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert is_answered(path)
    bound.remove()


def test_it_is_gone_when_removed(path: Path) -> None:
    bind(path).remove()
    assert not path.exists()


def test_one_that_a_dead_process_has_left_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
        left.listen()
    bound = bind(path)
    assert is_answered(path)
    bound.remove()


def test_a_living_one_is_refused_and_unharmed(path: Path) -> None:
    bound = bind(path)
    with pytest.raises(StartupError, match=f"--http-socket {path} is taken; end what listens there or choose another path"):
        bind(path)
    assert is_answered(path)
    bound.remove()


def test_a_living_one_whose_queue_is_full_is_refused_too(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind(str(path))
        busy.listen(0)
        first.connect(str(path))
        with pytest.raises(StartupError, match="is taken"):
            bind(path)
    assert path.exists()


def test_anything_else_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(StartupError, match="not a socket; remove it or choose another"):
        bind(path)
    assert path.read_text() == "precious"


def test_one_that_was_replaced_meanwhile_is_not_removed(path: Path) -> None:
    bound = bind(path)
    path.unlink()
    other = bind(path)
    bound.remove()
    assert is_answered(path)
    other.remove()


@pytest.mark.parametrize("name", ["no/such/folder.sock", "x" * 200])
def test_a_path_that_cannot_be_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(StartupError, match=f"--http-socket {tmp_path / name}: "):
        bind(tmp_path / name)
