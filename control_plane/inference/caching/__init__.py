"""Response caching in front of inference: hits, byte-equal messages, and singleflight for equal requests."""
