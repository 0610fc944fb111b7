"""Requests to callers' URLs, whose addresses are checked first."""
