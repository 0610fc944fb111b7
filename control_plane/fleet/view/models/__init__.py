"""Desired state and measurements of the fleet's models."""
