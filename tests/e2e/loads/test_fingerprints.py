"""What is known to be loaded, with the real Triton: whatever changes an answer changes the fingerprint, or leaves none."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc.aio

from control_plane.core.errors import ModelLoadFailed, UpstreamUnavailable
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.model import ModelOverride
from control_plane.models.adapters.managed_repository import ManagedRepository
from control_plane.models.adapters.model_files import ModelFiles
from control_plane.models.fingerprints import Fingerprints
from control_plane.models.loaded_contents import LoadedContents
from control_plane.models.model_service import ModelService
from control_plane.protocols.http1 import HttpRequest
from control_plane.settings import TritonSettings
from control_plane.triton.adapters.connected import UpstreamClient
from control_plane.triton.adapters.control import grpc_target
from control_plane.triton.embedded.process import EmbeddedTritonLauncher
from control_plane.triton.servers import Servers
from tests.aio import changing
from tests.e2e.tidegate import LONG_S, PROJECT

MODEL = """
import json, pathlib
import triton_python_backend_utils as pb_utils

FACTOR = {factor}

class TritonPythonModel:
    def initialize(self, arguments):
        named = json.loads(arguments["model_config"])["parameters"].get("factor")
        if named:
            folder = pathlib.Path(arguments["model_repository"], arguments["model_version"])
            global FACTOR
            FACTOR = float((folder / named["string_value"]).read_text())

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", FACTOR * tensor)]) for tensor in tensors]
"""
CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.ask(pb_utils.get_input_tensor_by_name(request, "X"))]) for request in requests]

    def ask(self, tensor):
        answer = pb_utils.InferenceRequest(model_name="a", requested_output_names=["Y"], inputs=[tensor]).exec()
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        return pb_utils.get_output_tensor_by_name(answer, "Y")
"""
TENSORS = """
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
KEEPS = "response_cache { enable: true }\n"
CPU = "instance_group [ { kind: KIND_CPU } ]\n"
BROUGHT = """{"backend": "python", "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}],
 "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [1]}], "instance_group": [{"kind": "KIND_CPU"}]}"""
ONE = np.ones(1, dtype=np.float32)


class Bench:
    """A Triton of its own, and the services that load models into it."""

    def __init__(self, tmp_path: Path) -> None:
        self.models, self.backends, self.state = tmp_path / "models", tmp_path / "python_backends", tmp_path / "state"
        self.backends.mkdir()
        self.models.mkdir()
        (self.backends / "__init__.py").touch()
        self.servers, self.known = Servers(), Fingerprints()
        self.answers: dict[bytes, float] = {}
        self.upstream: UpstreamClient

    def write(self, path: str, text: str, *, root: Path | None = None) -> Path:
        file = (root or self.models) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def add(self, name: str, config: str = "", *, factor: float = 2) -> None:
        self.write(f"{name}/config.pbtxt", 'backend: "python"\n' + TENSORS + CPU + config)
        self.write(f"{name}/1/model.py", MODEL.format(factor=factor))

    def add_caller(self, name: str) -> None:
        self.add(name, KEEPS)
        self.write(f"{name}/1/model.py", CALLER)

    def add_ensemble(self, name: str, step: str) -> None:
        maps = 'input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }'
        steps = f'ensemble_scheduling {{ step [ {{ model_name: "{step}" model_version: -1 {maps} }} ] }}\n'
        self.write(f"{name}/config.pbtxt", 'platform: "ensemble"\n' + TENSORS + KEEPS + steps)

    @asynccontextmanager
    async def running(self, *, fails: Sequence[str] = ()) -> AsyncIterator[None]:
        settings = TritonSettings(cache_dir=PROJECT / ".cache", python_backends=self.backends)
        repository = ManagedRepository([self.models], self.state, config_name="")
        files = ModelFiles(repository.root, config_name="", python_backends=self.backends)
        contents = LoadedContents(files, self.known)
        self.service = ModelService(servers=self.servers, repository=repository, load=["*"], load_timeout_s=LONG_S, contents=contents)
        process = await EmbeddedTritonLauncher(settings, self.state).start()
        self.upstream = UpstreamClient(process.endpoints, max_connections=4)
        try:
            async with asyncio.timeout(LONG_S):
                while not await self.upstream.is_serving():
                    await asyncio.sleep(0.02)
            self.servers.up(self.upstream)
            assert [each.name for each in await self.service.restore(self.upstream)] == [*fails]
            async with changing(self.service):
                yield
        finally:
            await self.upstream.close()
            await process.stop(grace_s=0.6)

    def fingerprint(self, model: str) -> Fingerprint:
        found = self.known.get(model)
        assert found is not None, f"{model} is not known"
        return found

    async def ask(self, model: str) -> float:
        tensor = tritonclient.grpc.aio.InferInput("X", [1], "FP32")
        tensor.set_data_from_numpy(ONE)
        with grpc_target(self.upstream.endpoints.grpc) as target:
            async with tritonclient.grpc.aio.InferenceServerClient(target) as client:
                return float((await client.infer(model, [tensor])).as_numpy("Y")[0])

    async def expect(self, answers: Mapping[str, float]) -> None:
        """What is known is so, and what has one digest has always had one answer."""
        for model, expected in answers.items():
            assert await self.ask(model) == expected, model
            assert self.answers.setdefault(self.fingerprint(model).digest, expected) == expected, model

    def loads(self) -> int:
        return (self.state / "triton/triton.log").read_text().count('"successfully loaded')


async def test_other_answers_are_another_fingerprint(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.add("a")
    bench.add_ensemble("e", "a")
    bench.add_ensemble("ee", "e")
    source = bench.models / "a/1/model.py"
    async with bench.running():
        await bench.expect({"a": 2, "e": 2, "ee": 2})
        first = bench.fingerprint("ee")
        loads = bench.loads()
        await bench.service.load("a")
        assert bench.loads() == loads, "it has not changed"
        assert bench.fingerprint("ee") is not first
        assert bench.fingerprint("ee").digest == first.digest

        source.write_text(MODEL.format(factor=3))
        future_ns = time.time_ns() + 10**15  # what is written after it looks older to Triton
        os.utime(source, ns=(future_ns, future_ns))
        await bench.service.load("a")
        await bench.expect({"a": 3, "e": 3, "ee": 3})
        source.write_text(MODEL.format(factor=4))
        await bench.service.load("ee")
        await bench.expect({"a": 4, "e": 4, "ee": 4})

        source.write_text("raise RuntimeError('as told')")
        with pytest.raises(ModelLoadFailed, match="as told"):
            await bench.service.load("a")
        assert [bench.known.get(model) for model in ("a", "e", "ee")] == [None] * 3
        source.write_text(MODEL.format(factor=2))
        await bench.service.load("a")
        await bench.expect({"a": 2, "e": 2, "ee": 2})
        assert bench.fingerprint("ee").digest == first.digest

        await bench.service.unload("a")
        assert [bench.known.get(model) for model in ("a", "e", "ee")] == [None] * 3
        await bench.service.load("a")
        await bench.expect({"a": 2, "e": 2, "ee": 2})
        await bench.service.unload("ee", unload_dependents=True)
        assert bench.known.get("ee") is None
        await bench.expect({"a": 2, "e": 2})  # Triton keeps what was loaded by its own name


async def test_what_a_model_calls_while_it_answers_counts_for_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.add("a")
    bench.add("unrelated")
    bench.add_caller("outer")
    bench.add_ensemble("e", "outer")
    async with bench.running():
        await bench.expect({"a": 2, "outer": 2, "e": 2})
        first = {model: bench.fingerprint(model) for model in ("outer", "e")}
        assert all(fingerprint.is_cacheable for fingerprint in first.values())
        loads = bench.loads()
        bench.add("a", factor=3)
        await bench.service.load("a")
        assert bench.loads() == loads + 1, "those that call it are not loaded"
        await bench.expect({"a": 3, "outer": 3, "e": 3})
        bench.add("a", factor=2)
        await bench.service.load("a")
        await bench.expect({"outer": 2, "e": 2})
        assert all(bench.fingerprint(model).digest == first[model].digest for model in first)

        (bench.models / "unrelated/1/model.py").write_text("raise RuntimeError('as told')")
        with pytest.raises(ModelLoadFailed, match="as told"):
            await bench.service.load("unrelated")
        assert [bench.known.get(model) is None for model in ("outer", "e", "a")] == [True, True, False]
        await bench.service.unload("unrelated")
        await bench.expect({"outer": 2, "e": 2})
        assert all(bench.fingerprint(model).digest != first[model].digest for model in first)


async def test_what_lies_outside_the_models_folder_counts_and_is_loaded_anew(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.add("named", 'parameters { key: "factor" value: { string_value: "../../shared/1/factor" } }')
    bench.write("shared/1/factor", "5")
    bench.write("shared/1/model.py", MODEL.format(factor=1))
    bench.write("shared/config.pbtxt", 'backend: "python"\n' + TENSORS + CPU)
    bench.write("ours/model.py", "from python_backends.shared.code import TritonPythonModel\n", root=bench.backends)
    code = bench.write("shared/code.py", MODEL.format(factor=7), root=bench.backends)
    bench.write("backed/config.pbtxt", 'backend: "ours"\n' + TENSORS + CPU)
    bench.write("backed/1/weights", "")
    async with bench.running():
        await bench.expect({"named": 5, "backed": 7})
        bench.write("shared/1/factor", "6")
        await bench.service.load("named")
        await bench.expect({"named": 6, "backed": 7})
        code.write_text(MODEL.format(factor=77))
        await bench.service.load("backed")
        await bench.expect({"backed": 77})


async def test_nobody_else_loads(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.add("a")
    async with bench.running():
        endpoints = bench.upstream.endpoints
        await bench.expect({"a": 2})
        for secret in ("", "wrong"):
            other = UpstreamClient(replace(endpoints, control_secret=secret), max_connections=1)
            for change in (other.control.load("a", timeout_s=5), other.control.unload("a", timeout_s=5), other.control.index()):
                with pytest.raises(UpstreamUnavailable, match="restricted"):
                    await change
            for target in (b"/v2/repository/models/a/load", b"/v2/repository/models/a/unload", b"/v2/repository/index"):
                assert (await other.http.send(HttpRequest(b"POST", target), timeout_s=5)).status == 403
            await other.close()
        for target in (b"/v2/repository/index", b"/v2/repository/any/index"):
            assert (await bench.upstream.http.send(HttpRequest(b"POST", target), timeout_s=5)).status == 200
        await bench.expect({"a": 2})
        assert endpoints.control_secret not in (bench.state / "triton/triton.log").read_text() + repr(endpoints)


async def test_overrides_count(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.add("a")

    def brought(factor: float) -> ModelOverride:
        return ModelOverride(BROUGHT, {"file:1/model.py": MODEL.format(factor=factor).encode()})

    async with bench.running():
        await bench.expect({"a": 2})
        own = bench.fingerprint("a").digest
        await bench.service.load("a", brought(8))
        assert (bench.known.get("a"), await bench.ask("a")) == (None, 2), "Triton says that it has loaded what it has not"
        await bench.service.unload("a")
        await bench.service.load("a", brought(8))
        await bench.expect({"a": 8})
        await bench.service.load("a")
        await bench.expect({"a": 8})
        await bench.service.unload("a")
        await bench.service.load("a")
        await bench.expect({"a": 2})
        assert bench.fingerprint("a").digest == own

        await bench.service.load("a", ModelOverride(BROUGHT.replace("KIND_CPU", 'KIND_CPU", "count": "2')))
        await bench.expect({"a": 2})
        assert bench.fingerprint("a").digest != own
        bench.add("a", factor=4)
        await bench.service.load("a")
        await bench.expect({"a": 4})


async def test_answers_are_kept_of_models_whose_owner_says_so_and_that_can_repeat(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.add("plain", KEEPS)
    bench.add("silent")
    bench.add("sequence", "max_batch_size: 4\nsequence_batching { }\n")
    bench.add("decoupled", "model_transaction_policy { decoupled: true }\n")
    for step in ("plain", "silent", "sequence", "decoupled"):
        bench.add_ensemble(f"of_{step}", step)
    async with bench.running(fails=["of_decoupled"]):  # Triton's own words: "please disable the response cache"
        keeping = {model for model in bench.known.all() if bench.fingerprint(model).is_cacheable}
        assert bench.known.all().keys() == {entry.name for entry in bench.models.iterdir()} - {"of_decoupled"}
        assert keeping == {"plain", "of_plain", "of_silent"}
