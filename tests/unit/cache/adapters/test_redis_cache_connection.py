"""What is sent to a Redis and made of its answers, with a fake that answers as the test says.

A real Redis's are tested in tests/contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pydantic import SecretStr

from control_plane.cache.adapters.redis_cache_connection import CacheConnection
from control_plane.protocols.resp import ReplyError, RespError, RespReader

PASSWORD = "pa55/word"
OK = b"+OK\r\n"


class FakeRedis:
    """Server that writes down commands; `answers` maps a command's name to the bytes of its answer."""

    def __init__(self) -> None:
        self.answers: dict[bytes, bytes] = {}
        self.commands: list[list[bytes]] = []
        self.pieces = 0
        """Reads in which the commands arrived."""
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = RespReader()
        while data := await reader.read(2**20):
            self.pieces += 1
            for command in parser.feed(data):
                assert isinstance(command, list)
                self.commands.append(command)  # type: ignore[arg-type]
                answer = self.answers.get(command[0], OK)  # type: ignore[arg-type]
                if not answer:
                    writer.close()
                    return
                writer.write(answer)
        writer.close()

    def connection(self, userinfo: str = "", database: str = "") -> CacheConnection:
        return CacheConnection(SecretStr(f"redis://{userinfo}127.0.0.1:{self.port}{database}"))


@asynccontextmanager
async def fake_redis() -> AsyncIterator[FakeRedis]:
    redis = FakeRedis()
    server = await asyncio.start_server(redis.serve, "127.0.0.1", 0)
    redis.port = server.sockets[0].getsockname()[1]
    async with server:
        yield redis


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[FakeRedis, CacheConnection]]:
    async with fake_redis() as redis:
        connection = redis.connection()
        await connection.open()
        yield redis, connection
        connection.drop()


@pytest.mark.parametrize(
    ("userinfo", "database", "commands"),
    [
        pytest.param("", "", [], id="nothing"),
        pytest.param(":pa55%2Fword@", "", [[b"AUTH", b"pa55/word"]], id="a password"),
        pytest.param("us%40er:pa55%2Fword@", "/0", [[b"AUTH", b"us@er", b"pa55/word"]], id="a user"),
        pytest.param("user@", "", [[b"AUTH", b"user", b""]], id="a user without password"),
        pytest.param(":p@", "/3", [[b"AUTH", b"p"], [b"SELECT", b"3"]], id="a database"),
    ],
)
async def test_how_it_opens(userinfo: str, database: str, commands: list[list[bytes]]) -> None:
    async with fake_redis() as redis:
        connection = redis.connection(userinfo, database)
        assert not connection.is_connected
        await connection.open()
        assert connection.is_connected
        assert redis.commands == commands
        connection.drop()
        connection.drop()
        assert not connection.is_connected


@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        pytest.param(b"WRONGPASS invalid username-password pair", "invalid username-password pair", id="wrong"),
        pytest.param(b"ERR unknown command 'AUTH', with args beginning with: 'pa55/wo' ", "unknown command 'AUTH'", id="renamed"),
        pytest.param(b"ERR what is AUTH pa55/word?", "what is AUTH ***?", id="quoted"),
    ],
)
async def test_a_password_that_is_refused_is_not_told(refusal: bytes, says: str) -> None:
    async with fake_redis() as redis:
        redis.answers[b"AUTH"] = b"-%b\r\n" % refusal
        connection = redis.connection("user:pa55%2Fword@", "/1")
        with pytest.raises(ReplyError) as caught:
            await connection.open()
        assert connection.describe(caught.value) == says
        connection.drop()


async def test_what_cannot_be_reached_is_an_error() -> None:
    async with fake_redis() as redis:
        connection = redis.connection()
    with pytest.raises(ConnectionRefusedError) as caught:
        await connection.open()
    assert connection.describe(caught.value) == str(caught.value)


async def test_values_are_those_of_the_names() -> None:
    async with connected() as (redis, connection):
        redis.answers[b"MGET"] = b"*3\r\n$2\r\n\r\n\r\n$-1\r\n$0\r\n\r\n"
        assert await connection.get_many([b"a", b"b", b"c"]) == [b"\r\n", None, b""]
        assert redis.commands == [[b"MGET", b"a", b"b", b"c"]]


@pytest.mark.parametrize(
    "answer",
    [b"*2\r\n$1\r\nx\r\n$1\r\ny\r\n", b"*-1\r\n", b":7\r\n", OK, b"HTTP/1.1 200 OK\r\n"],
    ids=["too many", "null", "a number", "a status", "another protocol"],
)
async def test_an_answer_that_is_not_an_mgets_is_an_error(answer: bytes) -> None:
    async with connected() as (redis, connection):
        redis.answers[b"MGET"] = answer
        with pytest.raises(RespError) as caught:
            await connection.get_many([b"a"])
        assert connection.describe(caught.value).startswith("it does not answer as Redis does (")


async def test_writes_are_one_pipeline_and_each_is_refused_by_itself() -> None:
    async with connected() as (redis, connection):
        assert await connection.set_many([(b"a", b"1", 60), (b"b", b"2", 1)]) == [None, None]
        assert redis.commands == [[b"SET", b"a", b"1", b"EX", b"60"], [b"SET", b"b", b"2", b"EX", b"1"]]
        assert redis.pieces == 1
        redis.answers[b"SET"] = b"-OOM command not allowed\r\n"
        refused, _ = await connection.set_many([(b"a", b"1", 60), (b"b", b"2", 1)])
        assert str(refused) == "command not allowed"


async def test_a_connection_that_is_one_answer_behind_is_found_out() -> None:
    async with connected() as (redis, connection):
        redis.answers[b"MGET"] = b"*1\r\n$-1\r\n*1\r\n$1\r\nx\r\n"
        assert await connection.get_many([b"a"]) == [None]
        assert await connection.get_many([b"b"]) == [b"x"]
        assert not await connection.is_in_sync()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        pytest.param(b"$34\r\n# Memory\r\nused:1\r\nmaxmemory:64mb\r\n\r\n", {"# Memory": "", "used": "1", "maxmemory": "64mb"}, id="told"),
        pytest.param(b"-NOPERM this user has no permissions\r\n", {}, id="refused"),
    ],
)
async def test_what_redis_says_of_its_memory(answer: bytes, found: dict[str, str]) -> None:
    async with connected() as (redis, connection):
        redis.answers[b"INFO"] = answer
        assert await connection.memory() == found


async def test_one_that_closes_the_connection_is_an_error() -> None:
    async with connected() as (redis, connection):
        redis.answers[b"MGET"] = b""
        with pytest.raises(ConnectionError) as caught:
            await connection.get_many([b"a"])
        assert connection.describe(caught.value) == "it has closed the connection"
