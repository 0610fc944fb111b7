"""Stores of idempotency records: SQLite for one gateway, Redis for several."""
