"""Tiers of models' files: the cold stores that have all of them, and the warm tier on this machine.

`warm_tier_manager` fetches and evicts; `store_catalogue` knows what the stores have.
"""
