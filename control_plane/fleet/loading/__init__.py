"""Loading: carries out loads, unloads and repairs of replicas, one at a time on each server.

`replica_loader` is the interface for the other packages; `load_plans` carries out the plans of
`fleet/domain/placement/load_plan`, while `server_turns` keeps one server's operations from overlapping.
"""
