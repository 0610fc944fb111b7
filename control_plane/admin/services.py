"""The services that the admin API is made of; `app/gateway/application` puts them together, and `admin/api` hands each of its
paths those that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from control_plane.admin.events.feed import EventFeed
from control_plane.admin.events.subscriptions import Subscriptions
from control_plane.admin.idempotency.ports import IdempotencyRecords
from control_plane.audit.trail import AuditTrail
from control_plane.auth.access import Access
from control_plane.auth.keys import Keys
from control_plane.cache.purges import Purges
from control_plane.fleet.administration import FleetModels
from control_plane.fleet.fleet_service import FleetService
from control_plane.jobs.jobs import Jobs
from control_plane.jobs.webhooks.secrets import WebhookSecrets
from control_plane.metering.reports import UsageService
from control_plane.models.builds import ModelBuilds
from control_plane.models.model_service import ModelService
from control_plane.objects.mirror import ObjectMirror
from control_plane.objects.objects import Objects
from control_plane.regions.regions import Regions
from control_plane.rollout.rollouts import Rollouts
from control_plane.telemetry.request_counts import RegionCount
from control_plane.triton.servers import Servers


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminServices:
    """Services of one gateway, as its admin API calls them."""

    models: ModelService | FleetModels
    servers: Servers
    access: Access
    keys: Keys
    webhook_secrets: WebhookSecrets
    objects: Objects
    purges: Purges
    usage: UsageService
    trail: AuditTrail
    known: ObjectMirror
    rollouts: Rollouts
    events: EventFeed
    subscriptions: Subscriptions
    records: IdempotencyRecords
    degraded: Callable[[], list[str]] = list
    """Returns what works less well than it should, a sentence each."""
    fleet: FleetService | None = None
    """The fleet; None for a single Triton."""
    regions: Regions | None = None
    """The other regions; None where none are known."""
    sent_to_regions: Callable[[], Iterable[RegionCount]] = tuple
    builds: ModelBuilds | None = None
    """Builds of models in the background; None where there are none."""
    jobs: Jobs | None = None
    """Asynchronous jobs; None where they are switched off."""
