"""The prices of one store: store_3 gives 3 % off."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.factor = 1 - int(args["model_name"].removeprefix("store_")) / 100

    def execute(self, requests):
        amounts = [pb_utils.get_input_tensor_by_name(request, "AMOUNT").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PRICE", each * self.factor)]) for each in amounts]
