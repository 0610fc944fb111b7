"""Entries of the audit log, their hash chain, and the redaction of secrets. Pure."""
