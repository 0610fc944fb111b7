"""One inference over HTTP with NVIDIA's client."""

import numpy as np
import tritonclient.http as triton

texts = np.array([["the tide waits for no one"]], dtype=object)

with triton.InferenceServerClient("localhost:8000") as client:
    tensor = triton.InferInput("TEXT", texts.shape, "BYTES").set_data_from_numpy(texts)
    answer = client.infer("text_embedding", [tensor])

embedding = answer.as_numpy("EMBEDDING")[0]
print(len(embedding), "dimensions:", *(f"{value:.2f}" for value in embedding[:3]))
