"""Frontends (HTTP, gRPC, metrics page): each parses a request, calls one service method, and renders the result."""
