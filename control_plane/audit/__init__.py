"""Audit log: who changed what, when and why, written before each change takes effect.

`trail` writes it, `domain/entry` is one entry and the chain of hashes; `objects/audited_store` is where changes of
objects pass.
"""
