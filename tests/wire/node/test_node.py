"""A node's port over real sockets: who is let in, who is not, and what those cost who are not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from control_plane.core.held_memory import HeldMemory
from control_plane.node.adapters import frames
from control_plane.node.adapters import server as node_server
from control_plane.node.adapters.connector import TcpNodeConnector
from control_plane.node.adapters.credentials import client_context, read_secret, server_context
from control_plane.node.domain.messages import (
    LENGTH_BYTES,
    VERSIONS,
    Challenge,
    Complete,
    GatewayProof,
    Hello,
    LookMemory,
    Memory,
    decode,
    encode,
)
from control_plane.node.ports import NodeRefused
from control_plane.settings import NodeSettings
from tests.tls_files import Authority, needs_openssl
from tests.wire.node.node_bench import SECRET, frame, listening


@pytest.mark.parametrize("secret", [SECRET, None])
async def test_with_the_same_secret_or_none_it_works(secret: bytes | None) -> None:
    async with listening(secret) as port:
        link = await port.works(secret=secret)
        link.close()


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        pytest.param(b"another secret of that length", SECRET, "does not have the node's secret", id="wrong"),
        pytest.param(None, SECRET, "wants a secret: give its file as --node-secret-file", id="none"),
        pytest.param(SECRET, None, "has no secret to prove itself by", id="the node has none"),
    ],
)
async def test_another_secret_is_refused_with_a_reason(ours: bytes | None, theirs: bytes | None, why: str) -> None:
    async with listening(theirs) as port:
        with pytest.raises(NodeRefused, match=why):
            await port.connector(ours).connect(timeout_s=10.0)


async def test_one_that_answers_in_a_nodes_place_is_found_out_and_learns_no_secret() -> None:
    heard = bytearray()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (Challenge(VERSIONS[1], "00" * 32, wants_secret=True), None):
            length = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
            heard.extend(await reader.readexactly(length))
            body = encode(answer) if answer is not None else b'["Welcome",{"proof":"AAAA","incarnation":"x"}]'
            writer.write(len(body).to_bytes(LENGTH_BYTES) + body)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(pretend, "127.0.0.1", 0)
    number = server.sockets[0].getsockname()[1]
    with pytest.raises(NodeRefused, match="does not have the node's secret"):
        await TcpNodeConnector("127.0.0.1", number, fleet="f", gateway="g", secret=SECRET, tls=None).connect(timeout_s=10.0)
    server.close()
    assert b"GatewayProof" in heard
    assert SECRET not in heard


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        pytest.param(
            frame(encode(Hello(VERSIONS[1] + 1, VERSIONS[1] + 9, "n", "f", "g"))), "upgrade the older of the two", id="only later versions"
        ),
        pytest.param(frame(encode(Hello(0, 0, "n", "f", "g"))), "upgrade the older of the two", id="only earlier versions"),
        pytest.param(frame(encode(LookMemory(1))), "LookMemory where Hello should be", id="a call without a greeting"),
        pytest.param(frame(b"GET / HTTP/1.1\r\n\r\n"), "not a message of this version", id="another protocol"),
        pytest.param((2**30).to_bytes(LENGTH_BYTES), "at most 4096 are read", id="an endless frame"),
        pytest.param(frame(b"x" * 5000), "at most 4096 are read", id="a large frame"),
        pytest.param(frame(encode(Hello(*VERSIONS, "n", "f", "g"))) + frame(encode(GatewayProof(b""))), "does not have", id="no proof"),
    ],
)
async def test_who_is_no_gateway_is_told_why_and_cut_off(sent: bytes, said: str) -> None:
    async with listening() as port:
        reader, writer = await port.raw()
        writer.write(sent)
        answered = await reader.read()
        assert b"Refused" in answered
        assert said in answered.decode()
        writer.close()
        (await port.works()).close()


async def test_a_newer_gateway_that_still_speaks_this_version_is_served() -> None:
    async with listening() as port:
        reader, writer = await port.raw()
        writer.write(frame(encode(Hello(VERSIONS[1], VERSIONS[1] + 6, "n", "f", "g"))))
        body = await reader.readexactly(int.from_bytes(await reader.readexactly(LENGTH_BYTES)))
        challenge = decode(body)
        assert isinstance(challenge, Challenge)
        assert challenge.version == VERSIONS[1]
        writer.close()


async def test_strangers_that_say_nothing_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are few at a time, and for a short time each; gateways that are in stay in."""
    monkeypatch.setattr(node_server, "_HANDSHAKE_TIMEOUT_S", 1.0)
    async with listening() as port:
        link = await port.works()
        strangers = [await port.raw() for _ in range(node_server.MAX_STRANGERS + 30)]
        link.send(LookMemory(2))
        assert await link.receive() == Memory(2, HeldMemory(1000, 50))
        for reader, writer in strangers:
            with suppress(ConnectionError):
                assert len(await reader.read()) < 200, "it was cut off, at most with a reason"
            writer.close()
        (await port.works()).close()
        link.close()


async def test_strangers_keep_no_gateway_out_that_comes_while_they_wait() -> None:
    async with listening() as port:
        strangers = [await port.raw() for _ in range(node_server.MAX_STRANGERS)]
        (await port.works()).close()
        for _, writer in strangers:
            writer.close()


async def test_those_of_one_address_have_none_of_another_cut_off() -> None:
    async with listening() as port:
        reader, writer = await port.raw()
        writer.write(frame(encode(Hello(*VERSIONS, "n", "fleet", "gateway"))))
        await reader.readexactly(LENGTH_BYTES)
        strangers = [await port.raw("127.0.0.2") for _ in range(2 * node_server.MAX_STRANGERS)]
        for each, _ in strangers[: node_server.MAX_STRANGERS]:
            with suppress(ConnectionError):
                assert await each.read() == b"", "the oldest of those go"
        writer.write(frame(encode(GatewayProof(b"none"))))
        assert b"does not have the node's secret" in await reader.read()
        for each_writer in (writer, *(each for _, each in strangers)):
            each_writer.close()


@needs_openssl
async def test_who_begins_no_tls_is_a_stranger_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not counted, they would take all of the node's file descriptors."""
    monkeypatch.setattr(node_server, "_HANDSHAKE_TIMEOUT_S", 600.0)
    ours = Authority(tmp_path, "ours")
    shown, asking = ours.issue("node"), ours.issue("gateway")
    node = NodeSettings(node_certificate=shown.certificate, node_key=shown.key, node_ca=ours.certificate)
    gateway = NodeSettings(node_certificate=asking.certificate, node_key=asking.key, node_ca=ours.certificate)
    async with listening(None, server_context(node)) as port:
        strangers = [await port.raw() for _ in range(2 * node_server.MAX_STRANGERS)]
        for reader, _ in strangers[: node_server.MAX_STRANGERS]:
            with suppress(ConnectionError):
                assert await reader.read() == b""
        (await port.works(client_context(gateway), None)).close()
        for _, writer in strangers:
            writer.close()


async def test_a_frame_that_was_changed_on_its_way_ends_the_connection() -> None:
    async with listening() as port:
        forged = encode(LookMemory(9))

        async def meddle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner_reader, inner = await port.raw()

            async def back() -> None:
                while data := await inner_reader.read(65536):
                    writer.write(data)
                writer.close()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(back())
                while data := await reader.read(65536):
                    inner.write(data.replace(encode(LookMemory(1)), forged))
                inner.close()

        proxy = await asyncio.start_server(meddle, "127.0.0.1", 0)
        number = proxy.sockets[0].getsockname()[1]
        link = await TcpNodeConnector("127.0.0.1", number, fleet="f", gateway="g", secret=SECRET, tls=None).connect(timeout_s=10.0)
        while not isinstance(await link.receive(), Complete):
            pass
        link.send(LookMemory(1))
        assert await link.receive() is None
        link.close()
        proxy.close()
        await asyncio.sleep(0.1)


async def test_a_gateway_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_MAX_UNSENT_BYTES", 2**16)
    async with listening() as port:
        link = await port.works()
        link._writer.transport.pause_reading()  # type: ignore[attr-defined]
        for number in range(1_000_000):
            port.bench.service.stub_died("a", f"was killed {number}")
            if number % 1000 == 0:
                await asyncio.sleep(0.001)
            if not port.bench.service._gateways:
                break
        assert not port.bench.service._gateways
        link.close()


@needs_openssl
async def test_over_tls_both_show_certificates_and_no_secret_is_needed(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")

    def settings(by: Authority, trusts: Authority, name: str) -> NodeSettings:
        shown = by.issue(name)
        return NodeSettings(node_certificate=shown.certificate, node_key=shown.key, node_ca=trusts.certificate)

    async with listening(None, server_context(settings(ours, ours, "node"))) as port:
        (await port.works(client_context(settings(ours, ours, "gateway")), None)).close()
        for wrong in (settings(theirs, ours, "stranger"), NodeSettings(node_ca=ours.certificate)):
            with pytest.raises((OSError, NodeRefused)):
                await port.connector(None, client_context(wrong)).connect(timeout_s=10.0)
        with pytest.raises((OSError, NodeRefused)):
            await port.connector(None, client_context(settings(ours, theirs, "fooled"))).connect(timeout_s=10.0)
        with pytest.raises((OSError, NodeRefused, TimeoutError)):
            await port.connector(None, None).connect(timeout_s=2.0)


@pytest.mark.parametrize(
    ("secret", "why"), [("short", "has 5 characters, and needs 16"), ("", "has no text")], ids=["too short to be one", "empty"]
)
def test_a_secret_that_can_be_guessed_is_refused(tmp_path: Path, secret: str, why: str) -> None:
    path = tmp_path / "secret"
    path.write_text(secret)
    with pytest.raises(Exception, match=why):
        read_secret(NodeSettings(node_secret_file=path))
