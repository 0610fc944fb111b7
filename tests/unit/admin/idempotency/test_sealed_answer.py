from __future__ import annotations

import base64

import pytest

from control_plane.admin.idempotency.sealed_answer import AnswerSeal

WHO = {"tenant": "t", "key_id": "k", "secret": "tg_secret"}
ANSWER = b'{"key": "tg_new"}'


def test_who_has_the_same_opens_it_wherever_it_was_sealed() -> None:
    sealed = AnswerSeal("uuid", **WHO).seal(ANSWER, digest="d")
    assert AnswerSeal("uuid", **WHO).open(sealed, digest="d") == ANSWER


@pytest.mark.parametrize(
    ("key", "who", "digest"),
    [
        pytest.param("another", WHO, "d", id="another idempotency key"),
        pytest.param("uuid", WHO | {"secret": "tg_other"}, "d", id="another API key"),
        pytest.param("uuid", WHO | {"secret": ""}, "d", id="no API key"),
        pytest.param("uuid", WHO | {"tenant": "u"}, "d", id="another tenant"),
        pytest.param("uuid", WHO | {"key_id": "l"}, "d", id="another key of the tenant"),
        pytest.param("uuid", WHO, "e", id="another request"),
    ],
)
def test_nobody_else_does(key: str, who: dict[str, str], digest: str) -> None:
    sealed = AnswerSeal("uuid", **WHO).seal(ANSWER, digest="d")
    assert AnswerSeal(key, **who).open(sealed, digest=digest) is None


@pytest.mark.parametrize("change", [lambda raw: raw[:-1], lambda raw: bytes([raw[0] ^ 1]) + raw[1:], lambda raw: b"", lambda raw: raw[:12]])
def test_what_was_changed_is_not_opened(change: object) -> None:
    assert callable(change)
    seal = AnswerSeal("uuid", **WHO)
    raw = base64.b64decode(seal.seal(ANSWER, digest="d"))
    assert seal.open(base64.b64encode(change(raw)).decode(), digest="d") is None
    assert seal.open("not base64", digest="d") is None


def test_a_record_is_found_by_the_same_caller_with_any_of_its_keys_secrets() -> None:
    name = AnswerSeal("uuid", **WHO).name
    assert AnswerSeal("uuid", **(WHO | {"secret": "tg_other"})).name == name
    others = [AnswerSeal("uuid", **(WHO | {field: "x"})).name for field in ("tenant", "key_id")] + [AnswerSeal("x", **WHO).name]
    assert len({name, *others}) == 4
    assert "uuid" not in name


def test_two_answers_are_never_sealed_alike() -> None:
    seal = AnswerSeal("uuid", **WHO)
    assert seal.seal(ANSWER, digest="d") != seal.seal(ANSWER, digest="d")
