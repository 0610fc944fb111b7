"""The world outside, one adapter each: implements `ports`, owns a client library and translates its exceptions."""
