"""An API server, or what stands before it, whose answers never end or never begin, and callers who wait no longer."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import certifi
import pytest

from control_plane.storage.kubernetes import ApiUnavailable, KubernetesApi, Watching
from tests.kubernetes_api import scripted_api, write_account

PATH = "/apis/tidegate.io/v1alpha1/namespaces/tidegate/models"


@asynccontextmanager
async def dripping(status: bytes, piece: bytes) -> AsyncIterator[int]:
    """A server that sends such pieces for ever; yields its port."""
    open_: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_.add(writer)
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n" % status)
            while not writer.is_closing():
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
                await asyncio.sleep(0.01)
        except (ConnectionError, RuntimeError, asyncio.IncompleteReadError):
            pass
        finally:
            open_.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in tuple(open_):
            writer.transport.abort()
        async with asyncio.timeout(30):
            while open_:
                await asyncio.sleep(0.01)


BOOKMARK = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1"}}}\n'


async def listed(api: KubernetesApi) -> None:
    await api.list_all(PATH)


async def watched(api: KubernetesApi) -> None:
    async for _ in api.watch(PATH, "", "1"):
        pass


@pytest.mark.parametrize(
    ("ask", "status", "piece"),
    [
        pytest.param(listed, b"200 OK", b" ", id="list"),
        pytest.param(listed, b"500 Internal Server Error", b" ", id="an error"),
        pytest.param(watched, b"200 OK", b" ", id="watch, without the end of a line"),
        pytest.param(watched, b"200 OK", BOOKMARK, id="watch that does not end when it was asked to"),
    ],
)
async def test_an_answer_that_never_ends_is_given_up(
    tmp_path: Path, ask: Callable[[KubernetesApi], Awaitable[None]], status: bytes, piece: bytes
) -> None:
    async with dripping(status, piece) as port:
        account = write_account(tmp_path / "account")
        api = KubernetesApi(f"http://127.0.0.1:{port}", account, watching=Watching(ends_s=1, silent_s=0.0), answer_s=0.5)
        try:
            async with asyncio.timeout(30):
                with pytest.raises(ApiUnavailable, match=r"goes on for more than"):
                    await ask(api)
        finally:
            await api.close()


async def test_a_server_that_is_silent_in_the_handshake_costs_no_connection(tmp_path: Path) -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        begun.set()
        await reader.read()
        left.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    account = write_account(tmp_path / "account")
    shutil.copy(certifi.where(), account / "ca.crt")
    api = KubernetesApi(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", account)
    asking = asyncio.get_running_loop().create_task(api.get(PATH))
    async with asyncio.timeout(30):
        await begun.wait()
        asking.cancel()
        await asyncio.wait([asking])
        await left.wait()
    await api.close()
    server.close()


@pytest.mark.parametrize(("keep_s", "kept"), [pytest.param(0.0, 0, id="for one call"), pytest.param(60.0, 1, id="kept")])
async def test_a_call_leaves_no_connection_at_whichever_turn_it_is_cancelled(tmp_path: Path, keep_s: float, kept: int) -> None:
    async with scripted_api() as server:
        api = KubernetesApi(f"http://127.0.0.1:{server.port}", write_account(tmp_path / "account"), keep_s=keep_s)
        for turns in itertools.count():
            asking = asyncio.get_running_loop().create_task(api.get(f"{PATH}/nobody"))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            if not asking.cancelled():
                break
        await api.get(f"{PATH}/nobody")  # accepted last, so all before it are known to the server
        async with asyncio.timeout(30):
            while server.connected > kept:
                await asyncio.sleep(0.01)
        await api.close()
