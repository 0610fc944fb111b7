from __future__ import annotations

import asyncio

import pytest

from control_plane.core.errors import ControlPlaneError, ModelLoadFailed
from control_plane.core.model import ModelOverride
from control_plane.workers.messages.from_workers import LoadModel, UnloadModel
from control_plane.workers.messages.to_workers import Changed
from control_plane.workers.remote_models import RemoteModels
from tests.aio import settle


class Bench:
    def __init__(self) -> None:
        self.sent: list[LoadModel | UnloadModel] = []
        self.models = RemoteModels(self.sent.append)


async def test_what_is_asked_reaches_the_parent_whole() -> None:
    bench = Bench()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.models.load("a"))
        tasks.create_task(bench.models.load("b", ModelOverride("{}", {"file:1/x": b"y"})))
        tasks.create_task(bench.models.load("c", ModelOverride("{}")))
        tasks.create_task(bench.models.unload("d", unload_dependents=True))
        await settle()
        assert bench.sent == [
            LoadModel(0, "a"),
            LoadModel(1, "b", "{}", {"file:1/x": b"y"}),
            LoadModel(2, "c", "{}", {}),
            UnloadModel(3, "d", True),
        ]
        for message in bench.sent:
            bench.models.answered(Changed(message.number))


async def test_each_gets_its_own_answer_in_whatever_order() -> None:
    bench = Bench()
    async with asyncio.TaskGroup() as tasks:
        one, other = tasks.create_task(bench.models.load("a")), tasks.create_task(bench.models.load("b"))
        await settle()
        bench.models.answered(Changed(1))
        await other
        assert not one.done()
        bench.models.answered(Changed(0))


KINDS = [kind for kind in ControlPlaneError.__subclasses__() if kind.__module__ == ControlPlaneError.__module__]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_every_error_comes_back_as_what_it_was(kind: type[ControlPlaneError]) -> None:
    bench = Bench()
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(_error_of(bench))
        await settle()
        bench.models.answered(Changed(0, kind.code.value, "why", 3))
    error = asked.result()
    assert (type(error), str(error)) == (kind, "why")
    if isinstance(error, ModelLoadFailed):
        assert error.upstream_code == 3


async def _error_of(bench: Bench) -> ControlPlaneError:
    with pytest.raises(ControlPlaneError) as caught:
        await bench.models.load("a")
    return caught.value


async def test_an_answer_to_one_who_has_left_harms_nobody() -> None:
    bench = Bench()
    async with asyncio.TaskGroup() as tasks:
        leaving = tasks.create_task(bench.models.load("a"))
        await settle()
        leaving.cancel()
    bench.models.answered(Changed(0))
    bench.models.answered(Changed(99))
