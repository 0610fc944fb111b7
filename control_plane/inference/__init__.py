"""Inference: the path of one request from its admission to its record, the same for all frontends.

`inference` is the path, `in_flight` what is known of each request on it. `routes` chooses among the models of a route,
`model_configuration` checks what a model's configuration asks of requests, `caching` answers from the cache or joins an
equal request, `dispatch` (in a fleet, `fleet/routing`) sends; `retries` says what may be sent again.
"""
