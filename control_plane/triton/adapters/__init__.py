"""Clients of one Triton over HTTP and gRPC, and readers of its models' configurations.

`http` and `grpc` carry requests, `control` loads and unloads; `connected` puts them together.
"""
