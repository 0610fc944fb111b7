"""Three inferences at the same time over one gRPC connection, with NVIDIA's asynchronous client."""

import asyncio

import numpy as np
import tritonclient.grpc.aio as triton

TEXTS = ["the tide waits for no one", "time and tide wait for none", "gradient descent"]


async def embed(client: triton.InferenceServerClient, text: str) -> np.ndarray:
    tensor = triton.InferInput("TEXT", [1, 1], "BYTES").set_data_from_numpy(np.array([[text]], dtype=object))
    answer = await client.infer("text_embedding", [tensor], client_timeout=10)
    return answer.as_numpy("EMBEDDING")[0]


async def main() -> None:
    async with triton.InferenceServerClient("localhost:8001") as client:
        embeddings = await asyncio.gather(*(embed(client, text) for text in TEXTS))
    for text, embedding in zip(TEXTS, embeddings, strict=True):
        print(f"{embedding @ embeddings[0]:.2f} {text}")


asyncio.run(main())
