"""Entries of the audit log, their chain of hashes, and what is left out of them."""
