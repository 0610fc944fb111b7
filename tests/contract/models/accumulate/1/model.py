"""Sums what the requests of one sequence bring, and says which sequence it took each for."""

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self._add(request) for request in requests]

    def _add(self, request):
        starts, sequence, value = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("START", "CORRID", "IN"))
        key = sequence.item()
        self.sums[key] = value + (0 if starts.any() else self.sums[key])
        shown = numpy.array([[str(key).encode()]], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", self.sums[key]), pb_utils.Tensor("SEQUENCE", shown)])
