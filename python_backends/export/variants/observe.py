"""Records activations of an ONNX graph on calibration texts, to which pruning and quantisation are fitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from python_backends.runtime.execution import Array


def observed(model: bytes, names: Iterable[str], calibration: Sequence[Sequence[int]], *, max_tokens: int) -> Mapping[str, Array]:
    """Return activations FP32 [tokens, channels] of about `max_tokens` tokens by their name in the graph.

    `calibration` are the texts' token ids. Tokens are drawn evenly from all texts, with a
    fixed seed, so that the same texts always give the same activations.
    """
    ordered = sorted(names)
    probe = onnx.load_from_string(model)
    probe.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in ordered)
    session = ort.InferenceSession(probe.SerializeToString(), providers=["CPUExecutionProvider"])
    input_ids, attention_mask = (value.name for value in session.get_inputs())
    draw = np.random.default_rng(0)
    share = max_tokens / sum(map(len, calibration))
    seen: dict[str, list[Array]] = {name: [] for name in ordered}
    for ids in calibration:
        row = np.array([ids], dtype=np.int64)
        kept = draw.random(len(ids)) < share
        for name, values in zip(ordered, session.run(ordered, {input_ids: row, attention_mask: np.ones_like(row)}), strict=True):
            seen[name].append(values[0][kept])
    return {name: np.concatenate(rows) for name, rows in seen.items()}
