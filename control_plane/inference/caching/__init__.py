"""Response caching in front of inference: lookups by request or by exact bytes, and singleflight for equal requests."""
