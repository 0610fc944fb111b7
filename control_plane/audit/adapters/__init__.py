"""Stores of the audit log: SQLite for one gateway, Redis for several."""
