"""What the frontends share: connections and their limits, the memory of bodies, and the table from errors to statuses.

`connection_server` is the base of both servers; `status` is the only table of statuses.
"""
