"""Asynchronous jobs over HTTP: their paths, and the computation of a job by the inference service."""
