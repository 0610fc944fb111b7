from __future__ import annotations

import pytest

from control_plane.node.domain.fence import OWNER_LASTS_S, Fence, Term

OWN, OTHER = "own", "other"


def test_the_newest_token_wins_and_stays() -> None:
    fence = Fence()
    assert fence.refusal(Term(OWN, 5), 0.0) is None
    assert fence.refusal(Term(OWN, 5), 1.0) is None
    assert fence.refusal(Term(OWN, 7), 2.0) is None
    assert "token 7" in (fence.refusal(Term(OWN, 6), 2.0) or "")
    assert fence.refusal(Term(OWN, 7), 1000.0) is None
    assert fence.refusal(Term(OWN, 6), 1000.0 + OWNER_LASTS_S - 0.1) is not None


def test_a_lower_token_counts_once_nobody_has_shown_the_newest_for_longer_than_a_lease() -> None:
    fence = Fence()
    assert fence.refusal(Term(OWN, 7), 0.0) is None
    fence.heard(OWN, OWNER_LASTS_S)  # a gateway that does not lead
    assert fence.refusal(Term(OWN, 6), OWNER_LASTS_S - 0.1) is not None, "which is no sign of the newest"
    assert fence.refusal(Term(OWN, 6), OWNER_LASTS_S) is None
    assert fence.refusal(Term(OWN, 5), OWNER_LASTS_S) is not None
    assert fence.refusal(Term(OWN, 7), OWNER_LASTS_S) is None, "the newest wins again where it is shown after all"


def test_a_second_fleet_is_refused_while_the_first_lives_whatever_its_token() -> None:
    fence = Fence()
    assert fence.refusal(Term(OWN, 1), 0.0) is None
    assert "'own' uses this node" in (fence.refusal(Term(OTHER, 99), OWNER_LASTS_S - 0.1) or "")
    fence.heard(OWN, OWNER_LASTS_S - 0.1)
    assert fence.refusal(Term(OTHER, 99), 2 * OWNER_LASTS_S - 0.2) is not None
    fence.heard(OTHER, 2 * OWNER_LASTS_S - 0.2)
    assert fence.refusal(Term(OTHER, 99), 2 * OWNER_LASTS_S) is None
    assert fence.refusal(Term(OWN, 100), 2 * OWNER_LASTS_S) is not None, "now it is the other's"


@pytest.mark.parametrize(("leaves", "is_free"), [(OWN, True), (OTHER, False)])
def test_who_says_goodbye_need_not_be_waited_for(leaves: str, is_free: bool) -> None:
    fence = Fence()
    assert fence.refusal(Term(OWN, 3), 0.0) is None
    fence.left(leaves)
    assert (fence.refusal(Term(OTHER, 1), 0.1) is None) is is_free
