"""Routing: sends each request of a fleet to a server, and to another where that is safe and helps.

`dispatch` is the whole path; `model_router` finds a replica or has one loaded, `resending` and `hedging` send once more.
"""
