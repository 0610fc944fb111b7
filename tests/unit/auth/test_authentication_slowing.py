"""Callers that keep failing are slowed, and what they cost is bounded."""

from __future__ import annotations

import pytest

from control_plane.core.errors import LimitExceeded, Unauthenticated
from control_plane.core.principal import Credentials
from tests.unit.auth.authentication_bench import HERE, THERE, TOKEN, Bench


async def test_a_source_that_keeps_failing_is_slowed(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    await bench.start()
    bench.fail(10)
    for attempt in ("tg_wrong", "forged.token.x"):
        refusal = bench.refusal(attempt)
        assert isinstance(refusal, LimitExceeded)
        assert refusal.retry_after_s == 1.0
    assert isinstance(bench.refusal("tg_wrong", THERE), Unauthenticated), "others are not slowed"
    bench.monotonic_s += 1.0
    assert isinstance(bench.refusal("tg_wrong"), Unauthenticated), "once more, and then for longer"
    assert isinstance(bench.refusal("tg_wrong"), LimitExceeded)
    assert caplog.text.count("which is slowed") == 2
    assert [getattr(record, "source", None) for record in caplog.records if "slowed" in record.message] == [HERE, HERE]


@pytest.mark.parametrize("failures", [10, 30, 1000])
async def test_a_fresh_key_and_a_fresh_token_are_accepted_where_others_are_slowed(failures: int) -> None:
    """A client that shares its address with one that guesses keys, behind a router or on one machine, is not
    refused for it.
    """
    bench = Bench()
    _, text = await bench.start()
    for _ in range(failures):
        bench.refusal("tg_wrong")
    assert isinstance(bench.refusal("tg_wrong"), LimitExceeded)
    assert bench.bearer(text).tenant == "acme"
    assert bench.bearer(TOKEN).tenant == "acme"


async def test_a_key_that_ended_is_slowed_like_a_wrong_one() -> None:
    bench = Bench()
    key, text = await bench.start()
    bench.bearer(text)
    await bench.keys.revoke(key.id)
    await bench.known.start()
    for _ in range(10):
        assert isinstance(bench.refusal(text), Unauthenticated)
    assert isinstance(bench.refusal(text), LimitExceeded)


async def test_forged_tokens_cost_a_bounded_number_of_signature_checks() -> None:
    bench = Bench()
    _, text = await bench.start()
    for number in range(5000):
        bench.refusal(f"forged.token.{number}")
    assert bench.tokens.signatures == 50
    refusal = bench.refusal(TOKEN)
    assert isinstance(refusal, LimitExceeded), "nobody can tell a fresh one from those"
    assert refusal.retry_after_s == pytest.approx(0.1)
    assert bench.bearer(text).tenant == "acme", "a key costs no signature"
    assert bench.bearer(TOKEN, THERE).tenant == "acme", "others are not concerned"
    for _ in range(600):
        bench.monotonic_s += 0.1
        for number in range(10):
            bench.refusal(f"forged.token.{number}")
    assert 600 <= bench.tokens.signatures - 51 <= 601, "ten a second from then on"
    bench.monotonic_s += 0.1
    assert bench.bearer(TOKEN).tenant == "acme", "once there is room for one"


async def test_a_clock_that_is_put_back_slows_nobody() -> None:
    bench = Bench()
    await bench.start()
    assert isinstance(bench.refusal("forged.token.x"), Unauthenticated)
    bench.now_s -= 900.0
    assert bench.bearer(TOKEN).tenant == "acme"


async def test_tokens_that_hold_cost_none_of_those_checks() -> None:
    bench = Bench()
    await bench.start()
    for number in range(500):
        bench.tokens.valid = f"token{number}"
        assert bench.bearer(f"token{number}").tenant == "acme"


async def test_a_token_in_use_goes_on_among_forged_ones_until_it_fails() -> None:
    bench = Bench()
    await bench.start()
    bench.bearer(TOKEN)
    for number in range(100):
        bench.refusal(f"forged.token.{number}")
    assert bench.bearer(TOKEN).tenant == "acme"
    bench.tokens.valid = "another"
    assert isinstance(bench.refusal(TOKEN), LimitExceeded)
    bench.tokens.valid = TOKEN
    assert isinstance(bench.refusal(TOKEN), LimitExceeded), "now it is as any"


async def test_a_success_does_not_make_up_for_others_failures() -> None:
    bench = Bench()
    _, text = await bench.start()
    for _ in range(10):
        bench.bearer(text)
        bench.fail(1)
    assert isinstance(bench.refusal("tg_wrong"), LimitExceeded)


async def test_failed_tokens_count_and_nothing_shown_does_not() -> None:
    bench = Bench()
    await bench.start()
    for _ in range(20):
        with pytest.raises(Unauthenticated):
            bench.authentication.authenticate(Credentials(None, None, HERE))
    for _ in range(10):
        assert isinstance(bench.refusal("forged.token.x"), Unauthenticated)
    assert isinstance(bench.refusal("forged.token.x"), LimitExceeded)
