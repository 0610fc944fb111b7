"""Parsers and validators of inference requests over HTTP and gRPC, within limits on what a request may cost."""
