"""Requests to receivers that callers name, over real sockets: where they go, and what a receiver can do to them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest

from control_plane.jobs.ports import NotDelivered
from control_plane.jobs.webhooks.adapters.guarded_post import GuardedPost
from control_plane.jobs.webhooks.adapters.system_resolver import SystemResolver
from control_plane.jobs.webhooks.domain.url import UrlRules, read_networks
from tests.tls_files import Authority, needs_openssl
from tests.unit.jobs.webhooks.adapters.guarded_post_bench import Answer, Names, never, receiver

LOOPBACK = UrlRules(plaintext=True, networks=read_networks(["127.0.0.0/8"]))
INSIDE = UrlRules(plaintext=True)
NOWHERE = "its name leads to no address of the public Internet"


async def post(url: str, names: Names, *, rules: UrlRules = LOOPBACK, tls: ssl.SSLContext | None = None, timeout_s: float = 30.0) -> int:
    it = GuardedPost(rules, names, tls=tls, timeout_s=timeout_s)
    return await it.post(rules.parse(url), [("webhook-id", "msg_1")], b'{"a":1}')


async def test_the_message_is_sent_as_the_url_says() -> None:
    async with receiver() as it:
        assert await post(f"http://Receiver.example:{it.port}/hook?x=1", Names(["127.0.0.1"])) == 204
        head, _, body = it.requests[0].partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        assert (lines[0], body) == (b"POST /hook?x=1 HTTP/1.1", b'{"a":1}')
        assert {f"Host: Receiver.example:{it.port}".encode(), b"Content-Length: 7", b"webhook-id: msg_1"} <= set(lines)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "fd00:ec2::254"]
)
async def test_a_name_that_leads_inside_is_not_connected_to(address: str) -> None:
    async with receiver() as it:
        for found in ([address], ["8.8.8.8", address], [address, "8.8.8.8"]):
            with pytest.raises(NotDelivered, match=NOWHERE):
                await post(f"http://evil.example:{it.port}/", Names(found), rules=INSIDE)
        assert it.connections == 0


async def test_what_a_name_leads_to_is_looked_up_once_for_an_exchange() -> None:
    """DNS rebinding: the second answer would lead to another server."""
    async with receiver() as judged, receiver() as other:
        names = Names(["127.0.0.2"], ["127.0.0.1"])
        rules = UrlRules(plaintext=True, networks=read_networks(["127.0.0.2/32"]))
        with pytest.raises(NotDelivered):  # nobody listens at the address that was judged
            await post(f"http://rebinding.example:{judged.port}/", names, rules=rules)
        assert names.asked == ["rebinding.example"]
        with pytest.raises(NotDelivered, match=NOWHERE):
            await post(f"http://rebinding.example:{judged.port}/", names, rules=rules)
        assert judged.connections == other.connections == 0


async def test_of_several_addresses_the_first_that_answers_is_taken() -> None:
    async with receiver() as it:
        assert await post(f"http://a.example:{it.port}/", Names(["127.0.0.2", "127.0.0.3", "127.0.0.1"])) == 204


async def test_an_address_that_says_nothing_leaves_time_for_the_next() -> None:
    async with receiver() as it:
        with socket.socket() as full, socket.socket() as first, socket.socket() as second:
            full.bind(("127.0.0.2", it.port))
            full.listen(0)
            for waiting in (first, second):  # Linux drops what a full queue has no room for
                waiting.setblocking(False)
                waiting.connect_ex(full.getsockname())
            assert await post(f"http://a.example:{it.port}/", Names(["127.0.0.2", "127.0.0.1"]), timeout_s=6.0) == 204


async def test_a_redirect_is_not_followed() -> None:
    async with receiver() as inside:
        location = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{inside.port}/\r\nContent-Length: 0\r\n\r\n".encode()
        async with receiver(location) as it:
            assert await post(f"http://a.example:{it.port}/", Names(["127.0.0.1"])) == 302
        assert inside.connections == 0


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiver() as proxy, receiver() as it:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert await post(f"http://a.example:{it.port}/", Names(["127.0.0.1"])) == 204
        assert proxy.connections == 0


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        pytest.param(never, "no answer within", id="frozen"),
        pytest.param(drip, "no answer within|come to an answer", id="never-comes-to-an-answer"),
        pytest.param(b"", "hung up", id="hangs-up"),
        pytest.param(b"220 mail.example ESMTP\r\n", "does not speak HTTP", id="another-protocol"),
        pytest.param(b"HTTP/1.1 200" + b" " * 100_000, "does not speak HTTP", id="a-line-without-end"),
        pytest.param(b"HTTP/1.1 999 No\r\n\r\n", "does not speak HTTP", id="no-such-status"),
    ],
)
async def test_what_a_receiver_does_ends_the_exchange_in_time(answer: bytes | Answer, says: str) -> None:
    async with receiver(answer) as it:
        with pytest.raises(NotDelivered, match=says):
            await post(f"http://a.example:{it.port}/", Names(["127.0.0.1"]), timeout_s=0.5 if answer is never else 60.0)


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def test_of_an_answer_only_the_status_is_read() -> None:
    async with receiver(endless) as it:
        assert await post(f"http://a.example:{it.port}/", Names(["127.0.0.1"])) == 200


async def test_nobody_there_and_no_such_name() -> None:
    async with receiver() as it:
        port = it.port
    with pytest.raises(NotDelivered, match="cannot be connected to"):
        await post(f"http://a.example:{port}/", Names(["127.0.0.1"]))


async def test_which_names_there_are_inside_is_told_to_nobody_but_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A caller would else try names, and read from the errors which of them lead to a host inside."""

    class Silent:
        async def addresses(self, host: str) -> Sequence[str]:
            await asyncio.get_running_loop().create_future()
            raise AssertionError

    caplog.set_level("INFO")
    said = []
    for resolver in (Names([]), Names(["10.0.0.1"]), Silent()):
        it = GuardedPost(INSIDE, resolver, timeout_s=0.05)
        with pytest.raises(NotDelivered) as refused:
            await it.post(INSIDE.parse("http://db.internal/"), [], b"")
        said.append(str(refused.value))
    assert said == [NOWHERE] * 3
    assert ["10.0.0.1" in record.getMessage() for record in caplog.records] == [False, True, False]
    assert all("db.internal" in record.getMessage() for record in caplog.records)


@needs_openssl
async def test_tls_is_verified_for_the_name_and_the_name_is_sent(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("receiver")
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(own.certificate, own.key)
    named: list[str | None] = []
    server_tls.sni_callback = lambda _socket, name, _context: named.append(name)
    async with receiver(tls=server_tls) as it:
        assert await post(f"https://localhost:{it.port}/", Names(["127.0.0.1"]), tls=authority.client()) == 204
        assert named == ["localhost"]
        with pytest.raises(NotDelivered, match="certificate"):
            await post(f"https://another.example:{it.port}/", Names(["127.0.0.1"]), tls=authority.client())
        with pytest.raises(NotDelivered, match="certificate"):
            await post(f"https://localhost:{it.port}/", Names(["127.0.0.1"]))
        assert len(it.requests) == 1


async def test_the_systems_resolver_knows_this_machine_and_no_nonsense() -> None:
    resolver = SystemResolver()
    assert "127.0.0.1" in await resolver.addresses("localhost")
    assert await resolver.addresses("a" * 64 + ".invalid") == []
