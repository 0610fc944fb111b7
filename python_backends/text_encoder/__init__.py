"""Triton backend `text_encoder`: token sequences of any lengths in, one row per sequence out, whatever the configuration calls them.

For an ONNX file whose inputs are all [batch, length] and whose outputs are all [batch, ...]. With `allow_ragged_batch: true` on its inputs
Triton hands over every waiting request, where its batcher would otherwise close the batch at each change of length. Padding is zero in
every input, so the file needs an attention mask among them. The session is configured with the native ONNX Runtime backend's keys.
"""
