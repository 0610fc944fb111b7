"""Triton backend `text_encoder`: token sequences of any length in, one row per sequence out, for any names of
tensors.

It serves a variant or an ONNX file whose inputs are all [batch, length] and whose outputs are all [batch,
...]. With `allow_ragged_batch: true` on its inputs Triton hands over every waiting request; otherwise its
batcher would close a batch at each change of length. `batching` decides which requests run together, and
when. All inputs are padded with zeros, so one of them must be an attention mask.

An output `TOKENS` INT32 [1] is computed here from the input `ATTENTION_MASK`, for requests that ask for it;
the model's file need not have it.
"""
