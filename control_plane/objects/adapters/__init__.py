"""State stores: SQLite for one gateway, Redis for several."""
