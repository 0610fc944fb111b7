"""Tokens of an issuer: `jwt` verifies them, `jwks` fetches and keeps the issuer's public keys."""
