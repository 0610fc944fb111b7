"""Response cache: what is kept of models' responses, under which keys, for how long, and what purges it.

`response_cache` has the keys and both levels; `domain/eviction` decides what stays in memory,
`adapters/redis_cache` is the level that gateways share; `purges` empties both everywhere.
"""
