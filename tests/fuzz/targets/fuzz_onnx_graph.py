"""Files of models whose weights are streamed: any bytes are a graph whose tensors lie in them, or are refused with a reason."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from python_backends.runtime.errors import ConfigError
    from python_backends.runtime.streaming.onnx_graph import read_graph
    from python_backends.runtime.streaming.parts import make_plan

_MIB = 1 << 20
_FOLDER = tempfile.TemporaryDirectory(prefix="tidegate-fuzz-")


def check(data: bytes) -> None:
    file = Path(_FOLDER.name) / "model.onnx"
    file.write_bytes(data)
    try:
        graph = read_graph(file)
    except ConfigError as exc:
        str(exc).encode()
        return
    for weight in graph.weights.values():
        assert 0 <= weight.offset <= weight.offset + weight.size <= len(data)
    for node in graph.nodes:
        assert len(node.renamed({})) <= 2 * len(node.message) + 16
    with suppress(ConfigError):
        make_plan(graph, _MIB, model="m")


if __name__ == "__main__":
    fuzz(check)
