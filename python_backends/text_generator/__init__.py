"""Backend `text_generator`: writes text with a causal language model (Llama class) from a folder that transformers can load.

Requests join and leave a running batch between two tokens (continuous batching). Its tensors are those of Triton's vLLM
backend, so clients need not know which of the two serves a model. `model.py` knows Triton; the rest is plain Python:
`request` (tensors to a prompt), `sampling_parameters` and `sampling` (logits to a token), `text_stream` (tokens to text),
`scheduling` (who computes how much in the next step), `generation` (the loop), `outbox` (answers on their way).
"""
