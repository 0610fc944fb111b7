from __future__ import annotations

import subprocess
import sys

import pytest

_OURS = "from control_plane.protocols.kserve.messages import service_pb2, service_pb2_grpc"
_CLIENTS = "import tritonclient.grpc, tritonclient.grpc.aio"


@pytest.mark.parametrize("imports", [pytest.param((_OURS, _CLIENTS), id="before"), pytest.param((_CLIENTS, _OURS), id="after it")])
def test_messages_are_those_of_tritonclient_which_works_on(imports: tuple[str, str]) -> None:
    same = "assert tritonclient.grpc.service_pb2 is service_pb2 and tritonclient.grpc.service_pb2_grpc is service_pb2_grpc"
    program = "\n".join((*imports, same, "print(tritonclient.grpc.InferInput('X', [1], 'FP32').name())"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout == "X\n"
