"""Requests in flight: the stages of a request from arrival to end, the registry of all, and the records of those that ended."""
