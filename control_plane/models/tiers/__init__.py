"""Tiers of models' files: cold stores, which have all models, and the warm tier on this machine.

`warm_tier_manager` fetches and evicts; `store_catalogue` lists what the stores have.
"""
