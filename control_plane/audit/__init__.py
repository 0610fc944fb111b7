"""Audit log: who changed what, when and why. An entry is written before its change takes effect.

`trail` writes the log, `domain/entry` defines an entry and the hash chain; every change of an object passes through
`objects/audited_store`.
"""
