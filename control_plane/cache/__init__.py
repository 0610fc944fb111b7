"""Response cache: which responses of models are kept, under which keys, for how long, and what purges them.

`response_cache` looks up and stores in both levels, by the keys of `keys`; `domain/eviction` is level one, in memory,
`adapters/redis_cache` level two, which gateways share; `purges` invalidates entries of both on every gateway.
"""
