from __future__ import annotations

import pytest

from control_plane.node.domain.handshake import GATEWAY, NODE, FrameSeal, Handshake

ONE = Handshake(b"a secret that is long enough", b"said")


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Handshake(b"another secret of that length", b"said"), id="another secret"),
        pytest.param(Handshake(ONE.secret, b"said otherwise"), id="another conversation"),
    ],
)
def test_a_proof_is_of_one_secret_one_conversation_and_one_side(other: Handshake) -> None:
    for side in (GATEWAY, NODE):
        assert ONE.is_proof(side, Handshake(ONE.secret, ONE.said).proof(side))
        assert not ONE.is_proof(side, other.proof(side))
        assert not ONE.is_proof(side, b"")
        assert other.key(side) != ONE.key(side)
    assert not ONE.is_proof(NODE, ONE.proof(GATEWAY)), "sent back to whoever made it"
    assert ONE.key(NODE) != ONE.key(GATEWAY)
    assert ONE.secret not in ONE.proof(NODE) + ONE.key(NODE)


def test_a_frame_cannot_be_changed_repeated_or_left_out() -> None:
    sent, received = FrameSeal(b"key"), FrameSeal(b"key")
    frames = [(body, sent.tag(body)) for body in (b"one", b"two", b"three")]
    assert received.is_tag(*frames[0])
    assert not received.is_tag(*frames[0])
    for wrong in ((b"onE", frames[0][1]), (b"one", frames[0][1][:-1]), frames[1]):
        assert not FrameSeal(b"key").is_tag(*wrong)
