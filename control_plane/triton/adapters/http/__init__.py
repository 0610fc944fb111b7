"""HTTP to Triton: the client and its pool, a connection, a streamed body."""
