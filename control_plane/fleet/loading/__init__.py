"""Loading: carries out loads, unloads and repairs of replicas on a fleet's servers, one at a time on each.

`replica_loader` is what others ask; `load_plans` carries out a plan of `fleet/domain/placement`, on the turns of `server_turns`.
"""
