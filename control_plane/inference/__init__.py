"""Inference: the path of one request from its admission to its record, the same for all frontends.

`inference` is the path; `cached_inference` answers from the cache or joins an equal request (`singleflight`);
`verbatim_cache` answers messages that came byte for byte before; `running_request` is a request in flight.
"""
