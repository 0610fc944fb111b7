"""Codec of events: CloudEvents 1.0, and the schema of each event type. Pure."""
