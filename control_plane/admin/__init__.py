"""Admin API: what administrators ask and change over HTTP, and the client that the command line uses.

`api` puts together the calls of `paths` and `declared`; `schema` has their JSON, `events` what is streamed, `access` who
may make them, `server` the port they come by.
"""
