"""One inference with OpenAI's client, which knows nothing of Triton."""

import openai

client = openai.OpenAI(base_url="http://localhost:8000/v1", api_key="a key, where authentication is on")
answer = client.embeddings.create(model="text_embedding", input="the tide waits for no one")

embedding = answer.data[0].embedding
print(len(embedding), "dimensions:", *(f"{value:.2f}" for value in embedding[:3]))
