"""Publishing of events to Redis Streams."""
