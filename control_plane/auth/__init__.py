"""Authentication and authorization: who the caller is, by an API key or a token (JWT), and what it may do.

`access` is the interface for the frontends; `authentication` checks credentials, `adapters/jwt` verifies tokens with
the keys that `adapters/jwks` fetches; `domain/authorization` decides; `keys` creates and revokes API keys;
`stream_rights` ends streams whose caller has lost the right to them.
"""
