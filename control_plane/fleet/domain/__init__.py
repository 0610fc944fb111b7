"""Decisions and values of a fleet. Pure; `fleet` is the model of servers, models and replicas that every decision reads."""
