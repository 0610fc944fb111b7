"""HTTP/2 (RFC 9113) without I/O, for either end of a connection.

`connection` puts the halves together: `receiving` and `sending` on the shared `state`; `frames`, `headers` and
`hpack` are the codecs.
"""
