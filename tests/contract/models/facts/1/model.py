"""Answers with what a model is told of its request beside the tensors."""

import json

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([_facts(request), *_other(request)]) for request in requests]


def _facts(request):
    facts = {
        "id": request.request_id(),
        "correlation": request.correlation_id(),
        "flags": request.flags(),
        "timeout": request.timeout(),
        "parameters": json.loads(request.parameters() or "{}"),
        "outputs": sorted(request.requested_output_names()),
    }
    return pb_utils.Tensor("FACTS", numpy.array([[json.dumps(facts, sort_keys=True).encode()]], dtype=object))


def _other(request):
    if "OTHER" in request.requested_output_names():
        yield pb_utils.Tensor("OTHER", numpy.array([[b"other"]], dtype=object))
