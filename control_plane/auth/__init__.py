"""Authentication and authorization: who calls, by an API key or a token (JWT), and what that caller may do.

`access` is what ports ask; `authentication` checks credentials, `adapters/jwt` tokens by keys of
`adapters/jwks`; `domain/authorization` decides; `keys` makes and revokes API keys; `stream_rights` ends
streams that lost theirs.
"""
