"""Objects that administrators change: tenants, keys, routes, prices and purges, each with a resource version.

`objects` writes them, `mirror` holds them in each process's memory, where requests look;
`domain/stored_objects` is their form in a store.
"""
