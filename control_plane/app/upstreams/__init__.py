"""Wiring of a gateway's Tritons: the servers, the clients of each, and the sources of their models."""
