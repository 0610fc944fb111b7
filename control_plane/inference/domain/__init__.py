"""Decisions on single requests: the model of a route, retries, and quarantine of requests that kill processes. Pure."""
