"""gRPC to Triton: the client, calls in flight on a connection, and a connection that is only held."""
