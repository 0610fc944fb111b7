"""Where gateways keep the records of idempotency keys: SQLite, or Redis for several."""
