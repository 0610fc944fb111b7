from __future__ import annotations

import pytest

from control_plane.regions.domain.credit import Credit


@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.5, 1.0])
def test_no_more_than_the_share_of_what_is_asked_is_sent(share: float) -> None:
    credit, sent = Credit(share), 0
    for _ in range(1000):
        credit.asked()
        if not credit.is_spent:
            credit.spend()
            sent += 1
    assert share * 1000 - 1 <= sent <= share * 1000 + 20 * share, "but for what was saved"
