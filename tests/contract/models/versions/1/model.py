"""Answers with its version."""

import json

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        assert json.loads(args["model_config"])["name"] == "versions"
        self.version = numpy.array([int(args["model_version"])], dtype=numpy.int32)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("VERSION", self.version)]) for _ in requests]
