"""The cache of an issuer's keys over time: keys are rotated, published badly, or cannot be fetched."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from control_plane.auth.adapters.jwks import RefreshIntervals
from control_plane.core.errors import Unauthenticated
from tests.unit.auth.adapters.jwks_issuer import (
    Answer,
    Bench,
    JwksServer,
    claims,
    cut_off,
    documented,
    dripping,
    endless,
    forge,
    hanging_up,
    key_set,
    public_jwk,
    seconds,
    silent,
    token,
    until,
)


async def test_both_keys_count_during_a_rotation_and_the_old_one_no_longer_after_it() -> None:
    old, new = token("ES256", 0), token("ES256", 1)
    with JwksServer().serving() as server:
        server.answer = documented(key_set(public_jwk("ES256", 0)))
        async with (bench := Bench(server)).running():
            assert (bench.accepts(old), bench.accepts(new)) == (True, False)
            server.answer = documented(key_set(public_jwk("ES256", 0), public_jwk("ES256", 1)))
            await until(lambda: bench.accepts(new))
            assert bench.accepts(old)
            server.answer = documented(key_set(public_jwk("ES256", 1)))
            await until(lambda: not bench.accepts(old))  # it was accepted before, and is in no cache any more
            assert bench.accepts(new)


async def test_an_unknown_key_brings_the_next_read_forward() -> None:
    with JwksServer().serving() as server:
        async with (bench := Bench(server, RefreshIntervals(refresh_s=1e6, at_least_s=0.05))).running():
            server.answer = documented(key_set(public_jwk("ES256", 1)))
            for text in (token("ES256", 0), *(forge({"alg": name, "kid": "new"}, claims()) for name in ("none", "HS256", "RS512"))):
                bench.accepts(text)
            await asyncio.sleep(0.3)
            assert server.asked == 1, "known keys and algorithms that are not ours are no reason"
            await until(lambda: bench.accepts(token("ES256", 1)))
            assert server.asked == 2


async def test_keys_that_only_the_clock_makes_old_are_read_again_at_once() -> None:
    text = token(exp=seconds(90_000))
    with JwksServer().serving() as server:
        async with (bench := Bench(server, RefreshIntervals(refresh_s=1e6, at_least_s=0.05))).running():
            assert bench.accepts(text)
            bench.passed_s += 3601
            assert not bench.accepts(text)
            await until(lambda: bench.accepts(text))


async def test_unknown_keys_do_not_bring_it_forward_as_often_as_they_come() -> None:
    with JwksServer().serving() as server:
        async with (bench := Bench(server, RefreshIntervals(refresh_s=1e6, at_least_s=0.5))).running():
            began_s = time.monotonic()
            for number in range(200):
                assert not bench.accepts(token(head={"kid": f"made-up-{number}"}))
                await asyncio.sleep(0.01)
            assert 2 <= server.asked <= (time.monotonic() - began_s) / 0.5 + 2


BAD: dict[str, Answer] = {
    "garbage": documented(b"<html>sorry</html>"),
    "an error": documented(b'{"keys": []}', 503),
    "somewhere else": documented(b"", 302, location="http://127.0.0.1:1/"),
    "no keys": documented(key_set()),
    "compressed": documented(b"\x1f\x8b\x08" + b"\0" * 100, content_encoding="gzip"),
    "endless": endless,
    "dripping": dripping,
    "silent": silent,
    "hanging up": hanging_up,
    "cut off": cut_off,
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
async def test_an_issuer_that_answers_badly_goes_unnoticed_for_an_hour(answer: Answer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        good, text = JwksServer(), token(exp=seconds(90_000))
        with good.serving() as server:
            async with (bench := Bench(server)).running():
                right, server.answer = server.answer, answer
                await bench.ask_twice_more()
                assert bench.accepts(text)
                bench.passed_s += 3500
                assert bench.accepts(text)
                bench.passed_s += 101
                assert not bench.tokens._keys.are_fresh
                with pytest.raises(Unauthenticated, match="tokens cannot be checked now"):
                    bench.tokens.verify(text)
                server.answer = right
                await until(lambda: bench.tokens._keys.are_fresh)
                assert bench.accepts(text)
            assert server.sent_bytes < 64 * 2**20, "nobody reads what does not end"
    assert caplog.text.count("cannot be read, the old ones stay in force") == 1
    assert caplog.text.count("can be read again") == 1


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
async def test_before_the_first_keys_are_read_nothing_is_accepted(answer: Answer) -> None:
    with JwksServer().serving() as server:
        right, server.answer = server.answer, answer
        async with (bench := Bench(server)).running(is_ready=False):
            assert not bench.accepts(token())
            await bench.ask_twice_more()
            assert not bench.accepts(token())
            assert not bench.tokens._keys.are_fresh
            server.answer = right
            await until(lambda: bench.accepts(token()))


async def test_an_issuer_that_is_down_and_comes_back() -> None:
    text = token(exp=seconds(90_000))
    with (first := JwksServer()).serving():
        bench = Bench(first)
        async with bench.running():
            assert bench.accepts(text)
    async with bench.running():  # nobody listens there now
        await asyncio.sleep(0.3)
        assert bench.accepts(text)
        bench.passed_s += 3601
        assert not bench.accepts(text)
        with JwksServer(first.server_port).serving():
            await until(lambda: bench.accepts(text))


async def test_a_token_that_was_accepted_ends_with_its_time_and_is_not_checked_again_until_then() -> None:
    with JwksServer().serving() as server:
        async with (bench := Bench(server, RefreshIntervals(stale_s=1e6))).running():
            text = token(exp=seconds(600))
            assert bench.tokens.verify(text) is bench.tokens.verify(text)
            bench.passed_s = 629 - 5
            assert bench.accepts(text)
            bench.passed_s = 631
            with pytest.raises(Unauthenticated, match="has expired"):
                bench.tokens.verify(text)
