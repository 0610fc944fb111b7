"""Codecs between OpenAI's embeddings API and the requests of text models. Pure; `openai_request` is one,
`embedding_tensors` the other end.
"""
