"""Header field that names the webhook of a job (`frontends/jobs/http`) or a batch (`frontends/batches/http`)."""

from __future__ import annotations

from typing import Protocol

from control_plane.core.errors import InvalidRequest
from control_plane.core.principal import Principal
from control_plane.jobs.domain.delivery import Delivery
from control_plane.protocols.http1 import HttpRequest


class Webhooks(Protocol):
    """Judge of where webhooks may be sent: `jobs/webhooks/sender`."""

    def accepted(self, tenant: str, url: str) -> Delivery:
        """Return the webhook of a job that is submitted. Raises InvalidRequest: it could not be delivered."""


def webhook_of(request: HttpRequest, field: bytes, principal: Principal, webhooks: Webhooks | None) -> Delivery | None:
    """Read which URL is told of the end. Raises InvalidRequest."""
    given = request.single_header(field)
    if given is None:
        return None
    if webhooks is None:
        raise InvalidRequest("webhooks are not delivered by this gateway")
    return webhooks.accepted(principal.tenant, given.decode("latin-1"))
