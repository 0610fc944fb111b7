"""Takes as long as it is told to, and now and then longer: of all requests a part (0 to 1) takes so many seconds more. Where that is rare
it is so at regular intervals in each process, so that each run has as many; else two processes could fall into step, and it is as it
falls. Where the fourth number is not 0, a request that takes longer ends when it is cancelled, which few models do.
"""

import random
import time
from collections import defaultdict

import triton_python_backend_utils as pb_utils

_LOOK_S = 0.01
_RARE = 0.05


class TritonPythonModel:
    def initialize(self, args):
        self._due = defaultdict(random.random)

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        seconds = pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()
        usual_s, part, more_s, heeds = map(float, seconds[:4])
        time.sleep(usual_s)
        if self._straggles(seconds.size, part):
            self._straggle(more_s, request if heeds else None)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SLEPT", seconds)])

    def _straggles(self, kind, part):
        if part > _RARE:
            return random.random() < part
        self._due[kind] += part
        if self._due[kind] < 1.0:
            return False
        self._due[kind] -= 1.0
        return True

    def _straggle(self, more_s, request):
        until_s = time.monotonic() + more_s
        while (left_s := until_s - time.monotonic()) > 0 and not (request and request.is_cancelled()):
            time.sleep(min(left_s, _LOOK_S) if request else left_s)
