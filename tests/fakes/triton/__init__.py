"""Fakes of a Triton, its models and where their files come from."""
