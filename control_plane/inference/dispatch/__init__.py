"""Dispatch of requests to servers: its ports, the implementation for a single Triton, and other regions."""
