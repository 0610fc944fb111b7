"""Embeddings of a sharded model, which no server has: its batches are answered by its parts, and the call is charged once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pytest

from control_plane.cache.domain.eviction import EvictingCache
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.errors import DeadlineExceeded, InvalidRequest, ModelNotFound, NotSupported, Overloaded, UpstreamFailed
from control_plane.core.infer_call import InferCall, Outcome
from control_plane.core.principal import Principal
from control_plane.core.scope import Scopes, parse_scope
from control_plane.core.tensor import RawTensor, Tensor
from control_plane.embeddings.embeddings import Embeddings
from control_plane.embeddings.text_models import TextModels
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.generation.generative_models import GenerativeModels
from control_plane.inference.sharded_models import ShardedModels
from control_plane.models.fingerprints import Fingerprints
from control_plane.protocols.grpc import GrpcAnswer, message_answer, status_answer
from control_plane.protocols.kserve.ensemble_proto import read_given, render_answer
from control_plane.protocols.kserve.tensors.raw_data import elements_of_raw
from tests.aio import run, run_in_virtual_time, settle
from tests.unit.embeddings.embeddings_bench import texts, vectors
from tests.unit.inference.governed_bench import Bench, Dispatch, Request, now_s
from tests.unit.sharding.domain.configs import config

_KEY = Principal("team", "k1", Scopes((parse_scope("infer:whole"),)))
_TEXT, _VECTOR = {"data_type": "TYPE_STRING", "dims": [1]}, {"dims": [2]}
CONFIG = config(
    ("encoder", {"h": "H"}, {"y": "Y"}), ("tokenizer", {"x": "X"}, {"h": "H"}), max_batch_size=2, X=_TEXT, Y=_VECTOR, H={"dims": [1]}
)
OTHER = config(("back", {"h": "H"}, {"y": "Y"}), ("front", {"x": "X"}, {"h": "H"}))


@dataclass
class _Parts:
    """The two parts: a text's length, and its vector, which is the length and its half."""

    asked: list[str] = field(default_factory=list)
    errors: dict[str, GrpcAnswer | Exception] = field(default_factory=dict)
    takes_s: float = 0.1

    def answer(self, model: str, given: Any) -> GrpcAnswer:
        (raw,) = given.inputs.values()
        if model == "tokenizer":
            found = np.array([[len(each)] for each in orjson.loads(elements_of_raw(raw))], np.float32).reshape(-1, 1)
        else:
            one = np.frombuffer(raw.data, np.float32).reshape(-1, 1)
            found = np.concatenate([one, one / 2], axis=1)
        (name,) = given.outputs
        tensor = RawTensor(Tensor(name, "FP32", found.shape), found.tobytes())
        return message_answer(b"".join(render_answer(model, "1", "", [(name, tensor)])))


class _Part(Request):
    def __init__(self, frame: bytes, principal: Principal, parts: _Parts) -> None:
        super().__init__(principal)
        self.frame, self.parts, self.model = frame, parts, ""

    async def send(self, server: Any, *, timeout_s: float) -> GrpcAnswer:
        self.parts.asked.append(self.model)
        await asyncio.sleep(self.parts.takes_s)
        if (error := self.parts.errors.get(self.model)) is not None:
            if isinstance(error, Exception):
                raise error
            return error
        return self.parts.answer(self.model, read_given(self.frame[5:]))

    def outcome(self, answer: Any) -> Outcome:
        return Outcome.UPSTREAM_ERROR if answer.code else Outcome.ANSWERED


class _Catalogue:
    configs = {"whole": CONFIG, "other": OTHER}

    def told_config(self, model: str) -> str:
        return self.configs.get(model, "")

    def is_repeatable(self, model: str) -> bool:
        return False


class _Fleet(Dispatch):
    sharded: ShardedModels
    catalogue: Any = _Catalogue()

    async def send(self, request: Any, call: InferCall, *, timeout_s: float, running: Any = None) -> Any:
        if told := self.catalogue.told_config(call.model_name):
            return await self.sharded.send(request, call, told, timeout_s=timeout_s, running=running)
        request.model = call.model_name
        return await super().send(request, call, timeout_s=timeout_s, running=running)

    async def reading(self, model: str, *, timeout_s: float) -> Any:
        raise NotSupported(f"model '{model}' is sharded")

    async def ready(self) -> set[str]:
        return {"whole", "other"}


class _World:
    def __init__(self, **limits: Any) -> None:
        fleet, self.budget, self.parts = _Fleet(), BodyBudget(2**20), _Parts()
        self.bench = Bench(dispatch=fleet, **limits)
        self.inference = self.bench.service
        for name in ("whole", "tokenizer", "encoder"):
            self.inference.models.answered(name)
        fleet.sharded = ShardedModels(self.inference, self.budget, max_bytes=2**20, now_s=now_s)
        access, fingerprints = self.inference._governance.access, Fingerprints()
        self.models = TextModels(fleet, fingerprints, access, now_s=now_s)
        self.generative = GenerativeModels(fleet, fingerprints, access, now_s=now_s)
        self.embeddings = Embeddings(
            inference=self.inference,
            models=self.models,
            cache=ResponseCache(fingerprints, EvictingCache(1 << 20), None, now_s=now_s),
            default_timeout_s=30.0,
            part_of=lambda frame, principal: _Part(frame, principal, self.parts),  # type: ignore[arg-type, return-value]
            now_s=now_s,
        )

    async def embed(self, *those: bytes, model: str = "whole", **more: Any) -> list[list[float]]:
        return vectors(await self.embeddings.embed(texts(*those, model=model, principal=_KEY, **more)))

    @property
    def is_idle(self) -> bool:
        return self.inference.in_flight == 0 and self.budget.held_bytes == 0


def test_texts_are_answered_in_order_by_the_parts_in_batches_of_the_wholes_size() -> None:
    async def test() -> None:
        world = _World()
        assert await world.embed(b"four", b"a", b"seven77") == [[4.0, 2.0], [1.0, 0.5], [7.0, 3.5]]
        assert sorted(world.parts.asked) == ["encoder", "encoder", "tokenizer", "tokenizer"]
        assert world.is_idle

    run_in_virtual_time(test())


def test_the_call_is_counted_and_charged_once_for_all_its_batches_and_a_key_for_the_whole_needs_no_right_to_its_parts() -> None:
    async def test() -> None:
        world = _World()
        began_s = now_s()
        await world.embed(b"one", b"other", b"third", b"4")
        assert now_s() - began_s == pytest.approx(0.2), "two batches at the same time, each of two steps"
        assert [(each[1], each[2]) for each in world.bench.meter.added] == [("whole", Outcome.ANSWERED)]
        assert world.bench.event.rows == 4
        assert world.bench.event.compute_units == pytest.approx(4.0)
        assert world.bench.recorder.computed.count("whole") == 1

    run_in_virtual_time(test())


def test_a_part_that_fails_is_named_and_its_error_is_what_it_says() -> None:
    async def test() -> None:
        world = _World()
        world.parts.errors["encoder"] = status_answer(3, "too long")
        with pytest.raises(InvalidRequest, match="in ensemble 'whole', part 'encoder': too long"):
            await world.embed(b"a")
        world.parts.errors["encoder"] = status_answer(13, "broken")
        with pytest.raises(UpstreamFailed, match="part 'encoder': broken"):
            await world.embed(b"a")
        world.parts.errors["encoder"] = Overloaded("no room", retry_after_s=7.0)
        with pytest.raises(Overloaded, match="part 'encoder': no room") as refused:
            await world.embed(b"a")
        assert refused.value.retry_after_s == 7.0
        assert world.is_idle

    run_in_virtual_time(test())


def test_one_deadline_holds_for_all_batches_and_a_caller_that_leaves_ends_them() -> None:
    async def test() -> None:
        world = _World()
        world.parts.takes_s = 0.6
        with pytest.raises(DeadlineExceeded, match="part 'encoder'"):
            await world.embed(b"a", timeout_s=0.6)
        world.parts.takes_s, world.parts.asked = 100.0, []
        async with asyncio.TaskGroup() as tasks:
            leaving = tasks.create_task(world.embed(*(b"%d" % number for number in range(40))))
            await settle()
            assert world.parts.asked == ["tokenizer"] * 4, "no more at a time than of a model on one server"
            leaving.cancel()
        assert world.is_idle
        assert [each[2] for each in world.bench.meter.added] == [Outcome.DEADLINE_EXCEEDED, Outcome.ABANDONED]

    run_in_virtual_time(test())


def test_it_is_known_by_its_folders_configuration_and_only_as_what_it_can_be() -> None:
    async def test() -> None:
        world = _World()
        everybody = Principal("team", "k1", Scopes((parse_scope("infer:*"),)))
        assert await world.models.usable(everybody, timeout_s=1.0) == ["whole"]
        assert await world.generative.usable(everybody, timeout_s=1.0) == []
        assert (await world.models.describe("whole", "1", timeout_s=1.0)).dimensions == 2
        with pytest.raises(ModelNotFound, match="version 2"):
            await world.models.describe("whole", "2", timeout_s=1.0)
        with pytest.raises(InvalidRequest, match="no text-embedding model"):
            await world.models.describe("other", timeout_s=1.0)
        with pytest.raises(NotSupported, match="is sharded"):
            await world.generative.describe("whole", timeout_s=1.0)

    run(test())
