"""Dispatch: where a request is computed. The ports for it, the one of a single Triton, and other regions."""
