"""Requests of an HTTP/1.1 connection: parsed as they arrive, within limits and the room that bodies have."""
