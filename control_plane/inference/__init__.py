"""Inference: the path of one request from admission to its record, the same for all frontends.

`inference` is the path, `in_flight` the state of each request on it. `routes` chooses among the models of a route,
`model_configuration` checks requests against a model's configuration, `caching` answers from the cache or joins an equal
request in flight, `dispatch` (in a fleet, `fleet/routing`) chooses the server and sends; `retries` decides what may be sent
again.
"""
