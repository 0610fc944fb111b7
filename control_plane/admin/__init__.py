"""Admin API over HTTP for administrators, and the client that the command line uses.

`api` assembles the application from `paths` and `declared`; `schema` has the JSON bodies, `events` the event streams,
`access` checks the caller's rights, and `server` listens on the admin port.
"""
