"""Triton's entry point of the backend `onnxruntime`: one object per instance, with a session of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backends.onnxruntime.adapt import decode_strings, with_scalars
from python_backends.onnxruntime.auto_complete import complete, is_complete
from python_backends.runtime.engines.session import find_model_file, open_model, open_session_to_describe
from python_backends.runtime.execution import GroupRunner, concatenate, group_by_shape, one_by_one
from python_backends.runtime.model_config import parse_model_config
from python_backends.runtime.signature import check_signature, read_signature
from python_backends.runtime.streaming.budget import weight_memory_bytes
from python_backends.runtime.triton import serve, version_directory


class TritonPythonModel:
    """An instance of a model that serves one ONNX file."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Fill in what the configuration lacks; Triton calls this once per load, in a stub of its own."""
        # as_dict() is the object that Triton reads back; its setters cannot express `reshape`.
        config = auto_complete_model_config.as_dict()
        if not is_complete(config):
            path = find_model_file(Path(pb_utils.get_model_dir()), config["default_model_filename"])
            parsed = parse_model_config(config)
            if weight_memory_bytes(parsed) is None:
                signature = read_signature(open_session_to_describe(path, parsed))
            else:  # a model that is streamed may be too large to be read here as a whole
                signature = open_model(path, parsed, kind="CPU", device_id=0).signature
            config.update(complete(config, signature))
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session and check the configuration against it; an error's text is the reason that Triton
        reports.
        """
        config = parse_model_config(json.loads(args["model_config"]))
        path = find_model_file(version_directory(args), config.default_model_filename)
        runtime = open_model(path, config, kind=args["model_instance_kind"], device_id=int(args["model_instance_device_id"]))
        check_signature(config, runtime.signature)
        self._runner = GroupRunner(
            run=with_scalars(runtime.run, config, runtime.signature),
            plan=group_by_shape if config.max_batch_size else one_by_one,
            assemble=concatenate,
            output_names=[tensor.name for tensor in config.outputs],
            scheduler_drops_cancelled=config.uses_dynamic_batching,
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return one response per request, in order."""
        return serve(requests, self._runner.execute, prepare=decode_strings)
