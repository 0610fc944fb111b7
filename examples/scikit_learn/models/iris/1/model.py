"""Serves estimator.joblib, which lies beside this file."""

from pathlib import Path

import joblib
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        path = Path(args["model_repository"], args["model_version"], "estimator.joblib")
        if not path.exists():
            raise FileNotFoundError(f"{path.name} is missing beside model.py: run train.py")
        self.estimator = joblib.load(path)

    def execute(self, requests):
        """One response for each request; what it raises would fail all of them."""
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "MEASURES").as_numpy()) for request in requests]

    def answer(self, measures):
        if not (measures > 0).all():  # nor is NaN
            error = pb_utils.TritonError("MEASURES must be positive: they are lengths in cm", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        species = self.estimator.predict(measures).astype(object).reshape(-1, 1)
        probabilities = self.estimator.predict_proba(measures).astype(np.float64)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SPECIES", species), pb_utils.Tensor("PROBABILITIES", probabilities)])
