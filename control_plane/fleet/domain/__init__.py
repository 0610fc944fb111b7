"""Decisions and values of a fleet: `fleet` is the model of it by which all others decide. Pure."""
