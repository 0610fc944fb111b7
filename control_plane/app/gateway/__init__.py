"""Wiring of the gateway as a whole: `application` is `tidegate serve`, the other modules wire its parts."""
