from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.auth import authentication as module
from control_plane.core.errors import ControlPlaneError, LimitExceeded, Unauthenticated
from control_plane.core.principal import Credentials, Principal
from control_plane.core.scope import Right, Scope, Scopes
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.stored_objects import to_body
from tests.aio import run
from tests.unit.auth.authentication_bench import HERE, SCOPES, THERE, TOKEN, Bench

# What is shown, and how

SHOWN: list[tuple[Callable[[str], str | None], Callable[[str], str | None], str | None]] = [
    (lambda key: f"Bearer {key}", lambda _: None, None),
    (lambda key: f"bearer {key}", lambda _: None, None),
    (lambda key: f"BEARER   {key}  ", lambda _: None, None),
    (lambda _: None, lambda key: key, None),
    (lambda _: "", lambda key: key, None),
    (lambda key: f"Bearer {key}", lambda _: "", None),
    (lambda key: f"Bearer {key}", lambda key: key, None),
    (lambda _: None, lambda _: None, module._NOTHING_SHOWN),
    (lambda _: "", lambda _: "", module._NOTHING_SHOWN),
    (lambda key: key, lambda _: None, module._NOT_BEARER),
    (lambda key: f"Basic {key}", lambda _: None, module._NOT_BEARER),
    (lambda _: "Bearer", lambda _: None, module._NOT_BEARER),
    (lambda _: "Bearer ", lambda _: None, module._NOT_BEARER),
    (lambda key: f"Basic {key}", lambda key: key, module._NOT_BEARER),
    (lambda key: f"Bearer {key}", lambda _: "tg_other", module._TWO_SHOWN),
    (lambda _: "Bearer tg_other", lambda key: key, module._TWO_SHOWN),
    (lambda _: f"Bearer {TOKEN}", lambda key: key, module._TWO_SHOWN),
    (lambda key: f"Bearer {key} {key}", lambda _: None, module._NOT_VALID),
    (lambda key: f"Bearer {key},{key}", lambda _: None, module._NOT_VALID),
    (lambda _: None, lambda _: TOKEN, module._NOT_VALID),
    (lambda _: f"Bearer {TOKEN}", lambda _: None, None),
]


@pytest.mark.parametrize(("authorization", "api_key", "refusal"), SHOWN)
async def test_how_a_key_is_shown(
    authorization: Callable[[str], str | None], api_key: Callable[[str], str | None], refusal: str | None
) -> None:
    bench = Bench()
    _, text = await bench.start()
    credentials = Credentials(authorization(text), api_key(text), HERE)
    if refusal is None:
        assert bench.authentication.authenticate(credentials).tenant == "acme"
    else:
        with pytest.raises(Unauthenticated) as raised:
            bench.authentication.authenticate(credentials)
        assert str(raised.value) == refusal


async def test_whom_a_key_stands_for() -> None:
    bench = Bench()
    key, text = await bench.start()
    principal = Principal("acme", key.id, Scopes(SCOPES), expires_s=5000.0, is_known=True)
    assert bench.bearer(text) == principal
    assert bench.bearer(text) is bench.bearer(text), "found in the cache"


# What is not valid

WRONG: dict[str, Callable[[str, str], str]] = {
    "another secret": lambda key_id, _: f"tg_{key_id}_{'A' * 43}",
    "another id": lambda _, secret: f"tg_ffffffffffff_{secret}",
    "its id alone": lambda key_id, _: f"tg_{key_id}_",
    "a secret cut short": lambda key_id, secret: f"tg_{key_id}_{secret[:-1]}",
    "a secret with more": lambda key_id, secret: f"tg_{key_id}_{secret}A",
    "another case": lambda key_id, secret: f"tg_{key_id}_{secret.swapcase()}",
    "the digest for the secret": lambda key_id, secret: f"tg_{key_id}_{module.sha256(secret.encode()).hexdigest()[:43]}",
    "prefix only": lambda *_: "tg_",
    "not ASCII": lambda key_id, secret: f"tg_{key_id}_{'ä' * 43}",
    "a lone surrogate": lambda *_: "tg_\udcff",
    "a newline inside": lambda key_id, secret: f"tg_{key_id}_{secret[:20]}\n{secret[21:]}",
    "long": lambda *_: "tg_" + "a" * 16000,
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_wrong_keys_are_refused_with_one_text(wrong: Callable[[str, str], str]) -> None:
    bench = Bench()
    key, text = await bench.start()
    assert str(bench.refusal(wrong(key.id, text[16:]))) == "the API key is not valid"


@given(st.text(max_size=80))
def test_nothing_made_up_is_accepted(text: str) -> None:
    bench = Bench()
    for credentials in (Credentials(text, None, HERE), Credentials(None, text, THERE), Credentials("Bearer " + text, text, HERE)):
        with pytest.raises((Unauthenticated, LimitExceeded)):
            bench.authentication.authenticate(credentials)


@pytest.mark.parametrize("was_seen", [False, True])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param({"revoked_s": 1000.0}, "the API key is not valid", id="revoked"),
        pytest.param({"revoked_s": 1000.0, "expires_s": 999.0}, "the API key is not valid", id="revoked and expired"),
        pytest.param({"expires_s": 1000.0}, "the API key has expired", id="expired"),
        pytest.param({"tenant": "gone"}, "the API key is not valid", id="its tenant is gone"),
        pytest.param({"secret_sha256": "0" * 64}, "the API key is not valid", id="another secret"),
    ],
)
async def test_a_change_holds_for_the_next_request(was_seen: bool, change: dict[str, float | str], says: str) -> None:
    bench = Bench()
    key, text = await bench.start()
    if was_seen:
        bench.bearer(text)
    await bench.store.put(Kind.API_KEY, key.id, to_body(replace(key, **change)))
    await bench.known.start()
    assert str(bench.refusal(text)) == says


async def test_a_deleted_key_or_tenant() -> None:
    for kind, name in ((Kind.API_KEY, None), (Kind.TENANT, "acme")):
        bench = Bench()
        key, text = await bench.start()
        bench.bearer(text)
        await bench.store.delete(kind, name or key.id)
        await bench.known.start()
        assert str(bench.refusal(text)) == "the API key is not valid"


async def test_scopes_that_have_changed_hold_at_once() -> None:
    bench = Bench()
    key, text = await bench.start()
    bench.bearer(text)
    await bench.store.put(Kind.API_KEY, key.id, to_body(replace(key, scopes=(Scope(Right.METRICS),))))
    await bench.known.start()
    assert bench.bearer(text).scopes == Scopes((Scope(Right.METRICS),))


@pytest.mark.parametrize("was_seen", [False, True])
async def test_time_ends_a_key_without_any_change(was_seen: bool) -> None:
    bench = Bench()
    _, text = await bench.start()
    bench.now_s = 4999.9
    if was_seen:
        bench.bearer(text)
    bench.now_s = 5000.0
    assert str(bench.refusal(text)) == "the API key has expired"


async def test_both_keys_are_accepted_in_the_overlap_of_a_rotation() -> None:
    bench = Bench()
    old, old_text = await bench.start()
    new, text = await bench.keys.rotate(old.id, overlap_s=60.0)
    await bench.known.start()
    assert bench.bearer(old_text) == Principal("acme", old.id, Scopes(SCOPES), expires_s=1060.0, is_known=True)
    assert bench.bearer(text).key_id == new.id
    bench.now_s = 1060.0
    assert str(bench.refusal(old_text)) == "the API key is not valid"
    assert bench.bearer(text).key_id == new.id


# Tokens


async def test_a_token_is_asked_about_each_time() -> None:
    bench = Bench()
    await bench.start()
    assert [bench.bearer(TOKEN).key_id for _ in range(3)] == ["somebody"] * 3
    assert bench.tokens.asked == 3, "its issuer's keys may have changed"


async def test_keys_are_never_taken_for_tokens() -> None:
    bench = Bench()
    _, text = await bench.start()
    bench.bearer(text)
    bench.refusal("tg_" + TOKEN)
    assert bench.tokens.asked == 0


async def test_tokens_are_refused_without_an_issuer_or_with_a_tenant_that_does_not_exist() -> None:
    bench = Bench()
    await bench.start()
    bench.tokens.tenant = "other"
    assert str(bench.refusal(TOKEN)) == "the token's tenant does not exist here"
    bench.authentication = bench.make(None)
    assert str(bench.refusal(TOKEN)) == "this is no API key (one begins with tg_), and tokens are not accepted here"


# What must not be kept or told


async def test_the_cache_is_bounded_and_holds_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_CACHED", 8)

    bench = Bench()
    await bench.start()
    texts = [(await bench.keys.create("acme", SCOPES))[1] for _ in range(30)]
    await bench.known.start()
    for text in texts * 2:
        bench.bearer(text)
        assert len(bench.authentication._cached._kept) <= 8
        assert text[16:] not in repr(bench.authentication._cached._kept)
    for number in range(30):
        bench.tokens.valid = f"token{number}"
        bench.bearer(f"token{number}")
        assert len(bench.authentication._accepted._kept) <= 8
    for number in range(30):
        bench.refusal(f"tg_wrong{number}", f"198.51.100.{number}")
    assert len(bench.authentication._cached._kept) <= 8


def test_no_secret_is_in_a_text_log_or_chained_error(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[str]:
        bench, told = Bench(), []
        key, text = await bench.start()
        for shown in (text, text[:-1], text.upper(), "tg_" + text, TOKEN + text, f"Basic {text}") * 2:
            for credentials in (
                Credentials(f"Bearer {shown}", None, HERE),
                Credentials(shown, shown, HERE),
                Credentials(None, shown, HERE),
            ):
                told.append(repr(credentials))
                try:
                    told.append(repr(bench.authentication.authenticate(credentials)))
                except ControlPlaneError as exc:
                    told += [repr(exc), repr(exc.__cause__), repr(exc.__context__)]
        assert any("LimitExceeded" in line for line in told), "the slowed ones are among them"
        assert any(key.id in line for line in told), "and the accepted ones"
        secrets.append(text[16:])
        return told

    secrets: list[str] = []
    with caplog.at_level(logging.DEBUG):
        told = "\n".join(run(main())) + caplog.text + "".join(repr(record.__dict__) for record in caplog.records)
    assert secrets
    assert not any(secret[:-1].lower() in told.lower() for secret in secrets)
    assert TOKEN not in told
