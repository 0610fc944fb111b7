from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from control_plane.core.endpoints import Address, TcpAddress, UnixAddress
from control_plane.triton.adapters.connecting import open_connection, short_path

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


class Client(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received.set_result(data)


def listening(address: str | tuple[str, int], queue: int = 10) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    listener.bind(address)
    listener.listen(queue)
    return listener


async def assert_it_connects(listener: socket.socket, address: Address) -> None:
    client = await open_connection(Client, address)
    with listener.accept()[0] as peer:
        peer.sendall(b"hello")
        assert await client.received == b"hello"
        client.transport.close()
        await asyncio.sleep(0)


def long_folder(tmp_path: Path) -> Path:
    folder = tmp_path / ("f" * 120)
    folder.mkdir()
    return folder


async def test_over_tcp(run: Run) -> None:
    with listening(("127.0.0.1", 0)) as listener:
        await assert_it_connects(listener, TcpAddress("127.0.0.1", listener.getsockname()[1]))


@pytest.mark.parametrize("is_long", [False, True], ids=["a path that fits", "a path of any length"])
async def test_through_a_unix_socket(run: Run, tmp_path: Path, is_long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = long_folder(tmp_path) if is_long else tmp_path
    monkeypatch.chdir(folder)
    with listening("s") as listener:
        await assert_it_connects(listener, UnixAddress(str(folder / "s")))  # after the first the loop has what it needs
        before = len(os.listdir("/proc/self/fd"))
        await assert_it_connects(listener, UnixAddress(str(folder / "s")))
        assert len(os.listdir("/proc/self/fd")) == before


def test_programs_that_this_one_starts_find_a_short_path_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = long_folder(tmp_path)
    monkeypatch.chdir(folder)
    connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    with listening("s"), short_path(str(folder / "s")) as path:
        subprocess.run([sys.executable, "-I", "-S", "-c", connect, path], check=True, timeout=20)


@pytest.mark.parametrize("name", ["a%20b", "a#b", "a,b", "jürgen", "a b", "a?b=c"])
def test_what_grpc_would_read_otherwise_goes_through_the_open_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with short_path(str(folder / "s")) as path:
        assert path.startswith(f"/proc/{os.getpid()}/fd/")
        assert os.path.samefile(os.path.dirname(path), folder)


def test_in_a_folder_that_is_gone_a_path_is_what_it_was(tmp_path: Path) -> None:
    path = str(tmp_path / ("f" * 120) / "s")
    with short_path(path) as same:
        assert same == path


async def test_nobody_there_is_an_error(run: Run, tmp_path: Path) -> None:
    left, nowhere = tmp_path / "left", tmp_path / ("f" * 120) / "s"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(left))
    for path, error in (
        (left, ConnectionRefusedError),
        (tmp_path / "none", FileNotFoundError),
        (nowhere, OSError),
    ):
        with pytest.raises(error):
            await open_connection(Client, UnixAddress(str(path)))


@pytest.fixture
def on_uvloop() -> Iterator[Run]:
    """Run on uvloop, as in production; asyncio's own loop mistakes the kernel's error for a full queue for
    progress.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner.run


async def test_a_full_queue_is_waited_for(on_uvloop: Run, tmp_path: Path) -> None:
    """With a full queue a TCP listener drops the attempt, which the client's kernel retries; a Unix socket
    refuses at once.
    """
    with listening(str(tmp_path / "s"), queue=0) as listener:
        address = UnixAddress(str(tmp_path / "s"))
        first = await open_connection(Client, address)
        async with asyncio.TaskGroup() as tasks:
            second = tasks.create_task(open_connection(Client, address))
            await asyncio.sleep(0.05)
            assert not second.done()
            accepted = [listener.accept()[0]]
            clients = [first, await second]
            accepted.append(listener.accept()[0])
        accepted[1].sendall(b"hello")
        assert await clients[1].received == b"hello"
        for client, peer in zip(clients, accepted, strict=True):
            client.transport.close()
            peer.close()


async def test_giving_up_at_a_full_queue_leaves_nothing(on_uvloop: Run, tmp_path: Path) -> None:
    with listening(str(tmp_path / "s"), queue=0):
        address = UnixAddress(str(tmp_path / "s"))
        first = await open_connection(Client, address)
        gc.collect()  # what earlier tests have left would else close its files in between
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.03):
                await open_connection(Client, address)
        assert len(os.listdir("/proc/self/fd")) == before
        first.transport.close()
