"""Post-processing: says in a word what a probability means."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(request, "PROBABILITY").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("VERDICT", verdicts(each))]) for each in found]


def verdicts(probabilities):
    words = np.select([probabilities >= 0.6, probabilities <= 0.4], ["positive", "negative"], "unsure")
    return words.astype(object)
