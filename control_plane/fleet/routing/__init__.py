"""Routing: sends each request of a fleet to a server, and to a second one where that is safe and useful.

`dispatch` is the whole path; `model_router` finds a replica or has one loaded, `resending` decides on retries, `hedging`
sends late requests to a second server as well.
"""
