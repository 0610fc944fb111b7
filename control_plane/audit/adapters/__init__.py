"""Where the audit log is kept: SQLite, or Redis for several gateways."""
