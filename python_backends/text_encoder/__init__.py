"""Triton backend `text_encoder`: token sequences of any lengths in, one row per sequence out, whatever the configuration calls them.

For a variant or an ONNX file whose inputs are all [batch, length] and whose outputs are all [batch, ...]. With `allow_ragged_batch: true`
on its inputs Triton hands over every waiting request, where its batcher would otherwise close the batch at each change of length; which
of them run together, and when, is `batching`'s to decide. Padding is zero in every input, so the model needs an attention mask among
them.

An output `TOKENS` INT32 [1] is counted here, by the input `ATTENTION_MASK`, for requests that ask for it: no file needs to have it.
"""
