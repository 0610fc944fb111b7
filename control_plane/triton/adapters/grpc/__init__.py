"""gRPC to Triton: the client, its calls in flight, and a connection that is only held open to notice that Triton ended."""
