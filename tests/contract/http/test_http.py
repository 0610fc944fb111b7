"""HTTP on raw sockets: each talk straight at Triton and through the gateway."""

from __future__ import annotations

import pytest

from tests.contract.conftest import BothWays
from tests.contract.http import http_extensions, http_messages, http_tensors
from tests.contract.http.http_wire import Talk, hold, summary
from tests.contract.ledger import compare

TALKS = [*http_messages.TALKS, *http_tensors.TALKS, *http_extensions.TALKS]


@pytest.mark.parametrize("talk", [pytest.param(talk, id=talk.name) for talk in TALKS])
def test_a_client_sees_the_same(frontends: BothWays, talk: Talk) -> None:
    compare(talk.name, hold(frontends.straight_http, talk), hold(frontends.gateway_http, talk), summary)
