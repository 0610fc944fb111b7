"""Which of the waiting requests run together, and when: work of different sizes at the least measured cost, short ones first.

It knows rows, lengths and milliseconds, and neither texts nor Triton: a length is whatever a batch is padded to, tokens of a sentence or
the width of a line. `latency_table`, `plan` and `waiting` are pure; `lanes` has the threads.
"""
