"""What events are and how they are written: CloudEvents 1.0, and the schema of each type."""
