"""Where events go: Redis Streams."""
