"""Models whose sequences have numbers or texts as ids, and their configurations."""

from __future__ import annotations

from typing import Any

import orjson

from control_plane.core.infer_call import InferCall
from control_plane.inference.dispatch.single_server import SingleServerDispatch
from control_plane.inference.model_configuration.sequence_types import SequenceTypes
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.triton.servers import Servers
from tests.fakes import FakeHttp, FakeUpstream

NUMBER = InferCall("m", "", "", (), sequence_id="7")
START = {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1], "data_type": "TYPE_INVALID"}]}


def taking(*types: str) -> dict[str, Any]:
    """The configuration of a model whose control input CORRID is of this type, if it has one."""
    inputs = [{"name": "ID", "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": each}]} for each in types]
    return {"name": "m", "sequence_batching": {"control_input": [START, *inputs]}}


def ensemble(*steps: tuple[str, int]) -> dict[str, Any]:
    return {"ensemble_scheduling": {"step": [{"model_name": name, "model_version": version} for name, version in steps]}}


def types_of(**configs: Any) -> SequenceTypes:
    """The guard of a Triton with these models; a name with `_2` at its end is that of version 2."""

    def answer(request: HttpRequest) -> HttpAnswer:
        name = request.target.decode().removeprefix("/v2/models/").removesuffix("/config").replace("/versions/", "_")
        return make_answer(200, orjson.dumps(configs[name])) if name in configs else make_answer(404)

    servers = Servers()
    servers.up(FakeUpstream(http=FakeHttp(answer=answer)))
    return SequenceTypes(SingleServerDispatch(servers))
