"""Event streams of the admin API: live events of this gateway, events read from logs, and the right to subscribe."""
