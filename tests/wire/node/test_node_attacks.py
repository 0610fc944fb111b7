"""Attacks on the wire between gateways and nodes, by whoever is on the way or only connects."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from control_plane.node.adapters import server as node_server
from control_plane.node.adapters.connector import TcpNodeConnector
from control_plane.node.domain.messages import (
    LENGTH_BYTES,
    MAX_BYTES,
    VERSIONS,
    Challenge,
    Complete,
    GatewayProof,
    Hello,
    LookMemory,
    Welcome,
    decode,
    encode,
)
from control_plane.node.ports import NodeRefused
from tests.wire.node.node_bench import SECRET, Port, frame, listening

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(LENGTH_BYTES)))


@asynccontextmanager
async def in_its_place(pretend: Peer) -> AsyncIterator[TcpNodeConnector]:
    """A gateway's connector to one that stands where it believes its node to be."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await pretend(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        number = server.sockets[0].getsockname()[1]
        yield TcpNodeConnector("127.0.0.1", number, fleet="fleet", gateway="gateway", secret=SECRET, tls=None)
    finally:
        server.close()


def on_the_way(port: Port, heard: list[bytes], change: Callable[[bytes], bytes] = lambda body: body) -> Peer:
    """One that passes a gateway's frames on to the node, keeps them, and may change them; and the node's as they are."""

    async def meddle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_node, to_node = await port.raw()

        async def back() -> None:
            while data := await from_node.read(65536):
                writer.write(data)
            writer.close()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(back())
            try:
                while True:
                    heard.append(body := await read_frame(reader))
                    to_node.write(frame(change(body)))
            finally:
                to_node.close()

    return meddle


async def test_what_a_gateway_has_said_opens_no_second_connection() -> None:
    async with listening() as port:
        heard: list[bytes] = []
        async with in_its_place(on_the_way(port, heard)) as connector:
            link = await connector.connect(timeout_s=10.0)
            while not isinstance(await link.receive(), Complete):
                pass
            link.send(LookMemory(1))
            assert await link.receive() is not None
            link.close()
        assert [type(decode(body)) for body in heard[:2]] == [Hello, GatewayProof]
        reader, writer = await port.raw()
        writer.write(b"".join(map(frame, heard)))
        assert isinstance(decode(await read_frame(reader)), Challenge)
        assert b"does not have the node's secret" in await reader.read()
        writer.close()


async def test_a_gateways_own_proof_is_no_proof_of_a_node() -> None:
    async def reflect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(frame(encode(Challenge(VERSIONS[1], "00" * 32, wants_secret=True))))
        proof = decode(await read_frame(reader))
        assert isinstance(proof, GatewayProof)
        writer.write(frame(encode(Welcome(proof.proof, "run"))))
        await reader.read()

    async with in_its_place(reflect) as connector:
        with pytest.raises(NodeRefused, match="does not have the node's secret"):
            await connector.connect(timeout_s=10.0)


async def test_a_challenge_that_asks_for_no_secret_is_not_believed() -> None:
    async def lull(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(frame(encode(Challenge(VERSIONS[1], "", wants_secret=False))))
        assert await reader.read() == b"", "it has said nothing more"

    async with in_its_place(lull) as connector:
        with pytest.raises(NodeRefused, match="has no secret to prove itself by"):
            await connector.connect(timeout_s=10.0)


@pytest.mark.parametrize("changed", [Hello(0, VERSIONS[1], "n", "fleet", "gateway"), Hello(*VERSIONS, "n", "another fleet", "gateway")])
async def test_nobody_on_the_way_changes_the_versions_or_the_fleet(changed: Hello) -> None:
    """Both are part of what the proofs are made over, so no older version can be forced on two that speak a newer."""

    def change(body: bytes) -> bytes:
        hello = decode(body) if body.startswith(b'["Hello"') else None
        return (
            body if not isinstance(hello, Hello) else encode(Hello(changed.oldest, changed.newest, hello.nonce, changed.fleet, "gateway"))
        )

    async with listening() as port:
        async with in_its_place(on_the_way(port, [], change)) as connector:
            with pytest.raises(NodeRefused, match="does not have the node's secret"):
                await connector.connect(timeout_s=10.0)
        (await port.works()).close()


@pytest.mark.parametrize("version", [VERSIONS[0] - 1, VERSIONS[1] + 1])
async def test_a_node_that_chooses_a_version_that_nobody_offered_is_refused(version: int) -> None:
    async def choose(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(frame(encode(Challenge(version, "00" * 32, wants_secret=True))))
        assert await reader.read() == b"", "no proof in a version that it does not speak"

    async with in_its_place(choose) as connector:
        with pytest.raises(NodeRefused, match=f"chose version {version} of the wire, which this gateway does not speak"):
            await connector.connect(timeout_s=10.0)


async def test_a_greeting_of_a_later_program_that_says_more_is_told_so() -> None:
    async with listening() as port:
        reader, writer = await port.raw()
        writer.write(frame(encode(Hello(*VERSIONS, "n", "f", "g")).replace(b'"oldest"', b'"more":1,"oldest"')))
        assert b"not a message of this version" in await reader.read()
        writer.close()


async def test_one_that_says_its_greeting_byte_by_byte_has_no_more_time_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_server, "_HANDSHAKE_TIMEOUT_S", 0.5)
    async with listening() as port:
        reader, writer = await port.raw()
        dripping = asyncio.get_running_loop().create_task(_drip(writer, frame(encode(Hello(*VERSIONS, "n", "f", "g")))))
        assert b"did not say in time who it is" in await reader.read()
        dripping.cancel()
        await asyncio.wait([dripping])
        writer.close()
        (await port.works()).close()


async def _drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    for byte in data:
        writer.write(bytes((byte,)))
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(frame(b"[" * 4000), id="a deep greeting"),
        pytest.param(frame(b""), id="an empty frame"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01" + bytes(512), id="a greeting of TLS"),
        pytest.param(frame(b'["Hello",{"oldest":1e30,"newest":1e30,"nonce":"","fleet":"","gateway":""}]'), id="endless versions"),
    ],
)
async def test_strange_greetings_are_refused(sent: bytes) -> None:
    async with listening() as port:
        reader, writer = await port.raw()
        writer.write(sent)
        assert b"Refused" in await reader.read()
        writer.close()
        (await port.works()).close()


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param((MAX_BYTES + 100).to_bytes(LENGTH_BYTES), id="a frame larger than any"),
        pytest.param(frame(encode(LookMemory(2))), id="a frame without a seal"),
        pytest.param(frame(b""), id="a frame too short for a seal"),
    ],
)
async def test_who_was_let_in_is_cut_off_for_what_it_has_not_sealed(sent: bytes) -> None:
    async with listening() as port:
        other, link = await port.works(), await port.works()
        link._writer.write(sent)
        assert await link.receive() is None
        other.send(LookMemory(7))
        assert await other.receive() is not None
        for each in (other, link):
            each.close()


async def test_a_gateway_that_begins_a_frame_and_says_nothing_more_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host may have lost its power: nothing says that the connection is over."""
    monkeypatch.setattr("control_plane.node.service._UNHEARD_S", 0.3)
    async with listening() as port:
        link = await port.works()
        link._writer.write(b"\0\0")
        assert await link.receive() is None
        assert not port.bench.service._gateways
        link.close()


@pytest.mark.parametrize(
    "sent", [b"", b"\0", frame(encode(Hello(*VERSIONS, "00" * 32, "fleet", "gateway")))], ids=["nothing", "a part", "a greeting"]
)
async def test_one_that_resets_its_connection_ends_no_node(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as port:
        for _ in range(3):
            reader, writer = await port.raw()
            writer.write(sent)
            if sent[1:]:
                await read_frame(reader)
            end: socket.socket = writer.get_extra_info("socket")
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no end
            writer.transport.abort()
            (await port.works()).close()
    assert "failed" not in caplog.text, "it is nothing unexpected"
