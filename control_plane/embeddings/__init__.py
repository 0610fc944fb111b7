"""Embeddings as OpenAI's API has them: each text is cached by itself, and the rest goes to the model in
batches.

`embeddings` answers a call, `text_models` knows which models embed texts, `text_batches` fills batches.
"""
