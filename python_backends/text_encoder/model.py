"""The edge to Triton of backend `text_encoder`: one object per instance, each with a session of its own."""

from __future__ import annotations

import json
from typing import Any

from python_backends.runtime.execution import GroupRunner
from python_backends.runtime.model_config import parse_model_config
from python_backends.runtime.session import find_model_file, open_session, run_function
from python_backends.runtime.signature import check_signature, read_signature
from python_backends.runtime.triton import serve, version_directory
from python_backends.text_encoder.padding import check_lengths, pad_and_concatenate, similar_lengths


class TritonPythonModel:
    """Encodes token sequences."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session and check the configuration against it; what it raises is the reason that Triton shows for the failed load."""
        config = parse_model_config(json.loads(args["model_config"]))
        path = find_model_file(version_directory(args), config.default_model_filename)
        session = open_session(path, config, kind=args["model_instance_kind"], device_id=int(args["model_instance_device_id"]))
        check_signature(config, read_signature(session))
        self._runner = GroupRunner(
            run=run_function(session, config),
            plan=similar_lengths,
            assemble=pad_and_concatenate,
            output_names=[tensor.name for tensor in config.outputs],
            scheduler_drops_cancelled=config.uses_dynamic_batching,
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request."""
        return serve(requests, self._runner.execute, prepare=check_lengths)
