"""What needs no Redis; the rest is tests/contract/stores/test_redis.py."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from pydantic import SecretStr

from control_plane.app.stores import open_state_store, open_usage_store
from control_plane.core.errors import StartupError, StoreUnavailable
from control_plane.storage.redis import RedisLink
from tests.aio import run

SOON_S = 40.0


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://h", "redis://h:6379/0"),
        ("redis://h:1/", "redis://h:1/0"),
        ("redis://h:1/15", "redis://h:1/15"),
        ("redis://:s3cret@h:1/2", "redis://h:1/2"),
        ("rediss://user:s3cret@h/2", "rediss://h:6379/2"),
        ("redis://:s3cret%2F%40@[::1]:1/2", "redis://[::1]:1/2"),
        ("rediss://:s3cret@h?ssl_ca_certs=/x.pem", "rediss://h:6379/0"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, place: str) -> None:
    link = RedisLink(SecretStr(url))
    assert link.place == place
    for shown in (repr(link), repr(link.client), repr(link.client.connection_pool)):
        assert "s3cret" not in shown


def test_user_password_and_database_are_what_it_connects_with() -> None:
    given = RedisLink(SecretStr("redis://me:s3cret%2F%40@h:7/3")).client.connection_pool.connection_kwargs
    assert [given[name] for name in ("username", "password", "host", "port", "db")] == ["me", "s3cret/@", "h", 7, 3]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h:6379",
        "http://:s3cret@h",
        "unix:///s3cret",
        "redis://",
        "redis://:s3cret@",
        "redis://:s3cret@h:port",
        "redis://:s3cret/x@h:1",
        "redis://:s3cret#x@h:1",
        "redis://:s3cret@h:99999",
        "redis://:s3cret@h/db",
        "redis://:s3cret@h/1/2",
        "redis://:s3cret@h?password=s3cret",
        "redis://:s3cret@h?socket_timeout=100",
        "rediss://:s3cret@h?ssl_cert_reqs=none",
        "redis://:s3cret@h?s3cret",
        "redis://[::1",
    ],
)
def test_a_wrong_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(StartupError, match=r"^--state-url .*; expected redis://") as caught:
        RedisLink(SecretStr(url))
    error: BaseException | None = caught.value
    while error is not None:
        assert "s3cret" not in repr(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize("opening", [open_state_store, open_usage_store])
@pytest.mark.parametrize("how", ["nobody-listens", "nobody-answers"])
def test_one_that_is_away_is_unavailable_soon(tmp_path: Path, opening, how: str) -> None:  # type: ignore[no-untyped-def]
    async def main(port: int) -> None:
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(StoreUnavailable, match=f"redis://127.0.0.1:{port}/0") as caught:
            await opening(SecretStr(f"redis://:s3cret@127.0.0.1:{port}/0"), tmp_path)
        assert asyncio.get_running_loop().time() - began_s < SOON_S
        assert "s3cret" not in str(caught.value)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        if how == "nobody-answers":
            run(main(port))
    if how == "nobody-listens":
        run(main(port))
    assert list(tmp_path.iterdir()) == []


async def test_one_that_talks_nonsense_is_unavailable(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(StoreUnavailable):
        await open_state_store(SecretStr(f"redis://127.0.0.1:{port}"), tmp_path)
    server.close()
    await server.wait_closed()
