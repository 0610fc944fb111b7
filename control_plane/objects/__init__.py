"""Objects that administrators change: tenants, keys, routes, prices and purges, each with a resource version.

`objects` writes them, `mirror` keeps a copy in each process's memory, from which requests read; `domain/stored_objects` is
their form in a store.
"""
