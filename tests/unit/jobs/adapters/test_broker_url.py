from __future__ import annotations

import pytest
from pydantic import SecretStr

from control_plane.core.errors import StartupError
from control_plane.jobs.adapters.rabbitmq_tickets import place_of_broker


@pytest.mark.parametrize("url", ["http://h", "amqp://", "amqp://u:pw@h:99999", "amqp://u:p/w@h", "amqp://u:pw@h?a=b", "amqp://u:p\\w@h"])
def test_a_url_that_the_client_cannot_read_is_refused_at_the_start_without_its_password(url: str) -> None:
    with pytest.raises(StartupError, match="TIDEGATE_JOBS_URL") as refused:
        place_of_broker(SecretStr(url))
    assert "w@" not in str(refused.value)


def test_the_place_has_no_password() -> None:
    assert place_of_broker(SecretStr("amqps://u:p%5Cw@h/v")) == "amqps://h:5671/v"
