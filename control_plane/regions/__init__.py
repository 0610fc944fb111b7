"""Other regions: gateways elsewhere that may compute what this one cannot answer in time, and for which it does the same.

`inference/dispatch/elsewhere` calls it for a request that this region would refuse for want of room or of a server; `regions` keeps
what is known of each region, and adapters reach them. Imports `inference`, and what stands below it.
"""
