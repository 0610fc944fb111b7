"""Answers of an HTTP/1.1 connection, in the order of its requests: whole or streamed."""
