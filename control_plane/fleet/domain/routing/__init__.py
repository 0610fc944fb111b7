"""Routing: which replica serves a request, which second one a hedge goes to, and which pool serves it. Pure."""
