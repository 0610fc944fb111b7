"""Answers of an HTTP/1.1 connection: one after the other, whole or streamed."""
