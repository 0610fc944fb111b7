"""Clients of a gateway by which `tidegate profile` asks."""
