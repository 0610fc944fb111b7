"""The models that rollouts go between: each answers with its own number, so that every answer says whose it is."""

from __future__ import annotations

from pathlib import Path

ONE, OTHER = "plain_a", "plain_b"
"""Good versions of the route `plain`, whose answers are cached."""
SEQUENCE_ONE, SEQUENCE_OTHER = "sequence_a", "sequence_b"
"""Good versions of the route `sequence`: they add up what a sequence has sent."""
BAD = {
    "wrong": "values = values * 2 + 1",
    "fails": 'raise pb_utils.TritonModelException("out of order")',
    "slow": "time.sleep(0.2)",
    "kills its stub": "os.kill(os.getpid(), 9)",
    "kills Triton": "os.kill(os.getppid(), 9)",
    "leaks": "self.held.append(numpy.ones(32 << 20, dtype=numpy.uint8))",
    "fails to load": "",
}
"""What a bad version does with a request."""
NUMBERS = {
    name: number
    for number, name in enumerate([ONE, OTHER, SEQUENCE_ONE, SEQUENCE_OTHER, *("bad_" + each.replace(" ", "_") for each in BAD)])
}

_CODE = """
import os
import resource
import time

import numpy
import triton_python_backend_utils as pb_utils

KIND = {kind!r}
LIMIT_BYTES = 512 << 20


class TritonPythonModel:
    def initialize(self, args):
        self.held, self.sums = [], {{}}
        if KIND == "fails to load":
            raise pb_utils.TritonModelException("its weights are missing")
        if KIND == "leaks":  # as a container's limit would
            with open("/proc/self/statm") as file:
                now = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + LIMIT_BYTES, now + LIMIT_BYTES))

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "X").as_numpy() * 2
        {act}
        outputs = [pb_utils.Tensor("Y", values), pb_utils.Tensor("V", numpy.array([{number}], dtype=numpy.int32))]
        return pb_utils.InferenceResponse(outputs)
"""
_ADD_UP = """sequence = request.correlation_id()
        start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy().ravel()[0]
        self.sums[sequence] = values = values + (0 if start else self.sums.get(sequence, -1000000))"""
_CONFIG = """max_batch_size: 0
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "V" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "tidegate_resident_bytes" value { string_value: "24MiB" } }
"""
_CACHED = "response_cache { enable: true }\n"
_SEQUENCES = """sequence_batching {
  max_sequence_idle_microseconds: 30000000
  direct { }
  control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] } ]
}
"""


def bad(kind: str) -> str:
    """The name of the version that is bad in this way."""
    return "bad_" + kind.replace(" ", "_")


def write(root: Path) -> Path:
    """A repository with all of them."""
    for name in (ONE, OTHER):
        _write(root, name, "", "pass", _CACHED)
    for name in (SEQUENCE_ONE, SEQUENCE_OTHER):
        _write(root, name, "", _ADD_UP, _SEQUENCES)
    for kind, act in BAD.items():
        _write(root, bad(kind), kind, act or "pass", _CACHED)
    return root


def _write(root: Path, name: str, kind: str, act: str, more: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "1" / "model.py").write_text(_CODE.format(kind=kind, act=act, number=NUMBERS[name]))
    (root / name / "config.pbtxt").write_text(f'backend: "python"\n{_CONFIG}{more}')
