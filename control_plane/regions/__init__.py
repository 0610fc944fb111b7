"""Other regions: gateways elsewhere that answer requests for which this region has no room or no server, and the reverse.

`inference/dispatch/region_failover` calls this package for such requests; `regions` keeps the state of each region, and the
adapters are clients of their gateways. Imports `inference`, and what stands below it.
"""
