"""OpenAI's embeddings API: each text is cached by itself, and the texts that miss go to the model in batches.

`embeddings` answers a call, `text_models` finds the models that embed texts, `text_batches` fills batches.
"""
