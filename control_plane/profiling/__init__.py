"""`tidegate profile`: breaks down the latency of a model's requests, measured through a running gateway."""
