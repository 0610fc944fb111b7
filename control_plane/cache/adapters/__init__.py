"""Redis as the level of the response cache that gateways share.

`redis_cache` is the port's implementation; `redis_cache_lookups` reads and `redis_cache_writes` writes for it, over
`redis_cache_connection`.
"""
