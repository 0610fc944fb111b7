"""Asynchronous jobs over HTTP: their paths, and the computing of one by the inference service."""
