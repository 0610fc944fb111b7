"""Routing: which pool and which replica serve a request, and which second replica a hedge goes to. Pure."""
