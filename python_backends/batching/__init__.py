"""Dynamic batching of requests of different lengths: which of the waiting requests run together, and when.

It batches for the least measured cost and serves short requests first. It knows rows, lengths and
milliseconds, but neither texts nor Triton: a length is whatever a batch is padded to, such as the tokens of a
sentence. `plan` and `waiting` are pure; `lanes` has the threads.
"""
