"""Stores of a fleet's lease, memory and requests to the leader (local for one process, Redis for several gateways), the
lists of its servers, and its metrics.
"""
