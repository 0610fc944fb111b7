from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest

from control_plane.core.errors import ControlPlaneError, ModelNotFound, UpstreamUnavailable
from control_plane.core.model import Model, ModelState, ServedVariant
from control_plane.models.builds import ModelBuilds
from control_plane.models.domain.model_build import BuildEvent, BuildEventKind
from tests.aio import run

BEGUN, STEP, BUILT, SKIPPED, FAILED = BuildEventKind


@dataclass
class FakeBuilder:
    """Fake `models/ports.ModelBuilder` that yields given events and with `goes_on` never ends; `said` is set
    after the last one.
    """

    events: list[BuildEvent]
    goes_on: bool = False
    error: Exception | None = None
    said: asyncio.Event = field(default_factory=asyncio.Event)
    is_closed: bool = False

    async def build(self) -> AsyncGenerator[BuildEvent]:
        try:
            for event in self.events:
                yield event
            self.said.set()
            if self.error is not None:
                raise self.error
            if self.goes_on:
                await asyncio.get_running_loop().create_future()
        finally:
            self.is_closed = True


@dataclass
class FakeModels:
    """Fake `models/builds.BuiltModels` with one model `m`, whose variant `served` is served, or which cannot
    be listed.
    """

    served: str | ControlPlaneError | None = "fp32"
    loaded_anew: list[str] = field(default_factory=list)

    async def get(self, name: str) -> Model:
        if isinstance(self.served, ControlPlaneError):
            raise self.served
        variant = None if self.served is None else ServedVariant(self.served, "")
        return Model(name, ModelState.READY, "", ("1",), None, variant)

    async def reload_built(self, built: str) -> None:
        self.loaded_anew.append(built)


def built(variant: str, *, is_auto_eligible: bool) -> BuildEvent:
    return BuildEvent(BUILT, "m", variant, is_auto_eligible=is_auto_eligible)


@pytest.mark.parametrize(
    ("served", "event", "is_loaded"),
    [
        pytest.param("fp32", built("int8", is_auto_eligible=True), True, id="a better one may be chosen now"),
        pytest.param("fp32", built("fp32", is_auto_eligible=True), True, id="the one that is served has been measured"),
        pytest.param("fp32", built("pruned", is_auto_eligible=False), False, id="one that nobody has named is not chosen"),
        pytest.param("pruned", built("pruned", is_auto_eligible=False), True, id="one that was named has been built anew"),
        pytest.param(None, built("pruned", is_auto_eligible=False), True, id="the load may have failed for the want of it"),
        pytest.param(ModelNotFound("m"), built("pruned", is_auto_eligible=False), True, id="nobody knows"),
        pytest.param(UpstreamUnavailable("down"), built("pruned", is_auto_eligible=False), True, id="Triton is down"),
        pytest.param("fp32", BuildEvent(SKIPPED, "m", "bf16", "it needs PyTorch"), False, id="one that cannot be built here"),
        pytest.param("fp32", BuildEvent(FAILED, "m", "int8", "too inexact"), False, id="one that has failed"),
    ],
)
def test_what_is_built_is_served_where_that_may_change_anything(
    served: str | ControlPlaneError | None, event: BuildEvent, is_loaded: bool
) -> None:
    models = FakeModels(served)
    run(ModelBuilds(FakeBuilder([event]), models).run())
    assert models.loaded_anew == (["m"] if is_loaded else [])


async def test_what_is_built_now_can_be_asked_for_and_what_failed_afterwards_too() -> None:
    events = [
        BuildEvent(BEGUN, "m", "fp32", "not measured here yet"),
        BuildEvent(BUILT, "m", "fp32", is_auto_eligible=True),
        BuildEvent(FAILED, "m", "bf16", "out of memory"),
        BuildEvent(BEGUN, "m", "int8", "not built yet"),
        BuildEvent(STEP, text="quantise"),
    ]
    builder = FakeBuilder(events, goes_on=True)
    builds = ModelBuilds(builder, FakeModels())
    async with asyncio.TaskGroup() as tasks:
        building = tasks.create_task(builds.run())
        await builder.said.wait()
        assert builds.state_of("m") == "building int8: quantise; bf16 could not be built: out of memory"
        assert builds.state_of("other") == ""
        building.cancel()
    assert builder.is_closed
    assert builds.state_of("m") == "bf16 could not be built: out of memory"


async def test_a_model_of_one_form_has_no_variant_to_name() -> None:
    builder = FakeBuilder([BuildEvent(BEGUN, "tokenizer", "", "not built yet")], goes_on=True)
    builds = ModelBuilds(builder, FakeModels())
    async with asyncio.TaskGroup() as tasks:
        building = tasks.create_task(builds.run())
        await builder.said.wait()
        assert builds.state_of("tokenizer") == "building it: not built yet"
        building.cancel()


def test_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    events = [
        BuildEvent(BEGUN, "m", "int8", "not built yet"),
        built("int8", is_auto_eligible=True),
        BuildEvent(SKIPPED, "m", "bf16", "it needs PyTorch"),
        BuildEvent(FAILED, text="the build ended with exit status -9"),
    ]
    with caplog.at_level(logging.INFO):
        run(ModelBuilds(FakeBuilder(events), FakeModels()).run())
    assert caplog.messages == [
        "building m/int8 in the background: not built yet",
        "built m/int8",
        "m/bf16 is not built: it needs PyTorch",
        "what is not up to date could not be built: the build ended with exit status -9",
    ]


def test_a_build_that_cannot_begin_ends_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    run(ModelBuilds(FakeBuilder([], error=OSError("no memory")), FakeModels()).run())
    assert caplog.messages == ["models are not built any further"]
