"""What one process collects for tenants that are followed: requests and ends of jobs, and nothing while nobody follows."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema  # type: ignore[import-untyped]
import pytest

from control_plane.app.data_plane.event_streams import RequestEvents
from control_plane.events.domain.schemas import TENANT_TYPES
from control_plane.jobs.domain.job import JobState
from control_plane.metering.metering import Metering
from control_plane.settings import load_settings
from tests.fakes.jobs import job
from tests.fakes.stores.usage_store import FakeUsageStore


def events(**settings: object) -> tuple[RequestEvents, Metering]:
    metering = Metering(store=FakeUsageStore(), spill=None, max_sums=10)  # type: ignore[arg-type]
    return RequestEvents(load_settings(settings), metering, is_publisher=True), metering


def test_requests_are_recorded_only_while_some_tenant_is_followed() -> None:
    own, metering = events()
    assert not metering.has_log
    own.collect_for(frozenset(("team",)))
    own.collect_for(frozenset(("team", "other")))
    assert metering.has_log
    own.collect_for(frozenset())
    assert not metering.has_log


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.EXPIRED, JobState.DEAD])
def test_a_jobs_end_is_told_without_its_files(state: JobState) -> None:
    own, _ = events()
    ended = replace(job(), state=state, ended_s=1.7e9, error="why")
    own.job_ended(ended)
    own.collect_for(frozenset((ended.tenant,)))
    own.job_ended(ended)
    (told,) = own.tenant_tap.take()
    said = json.loads(told.data)
    assert (told.kind, told.at_s, said["id"], said["state"], said["error"]) == ("job.ended", 1.7e9, ended.id, state, "why")
    (known,) = [each for each in TENANT_TYPES if each.name == f"io.tidegate.{told.kind}.v1"]
    jsonschema.validate(said, known.schema)
    assert said.keys() <= known.fields.keys()


def test_workers_have_copies_of_the_feeds_and_one_process_has_its_own() -> None:
    for settings, has_own in (({}, True), ({"workers": 2}, False)):
        own, _ = events(**settings)
        assert bool(own.tenants.hold("team").id) is has_own
