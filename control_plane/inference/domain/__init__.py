"""Decisions on single requests: which model of a route, what may be sent again, and which request kills models. Pure."""
