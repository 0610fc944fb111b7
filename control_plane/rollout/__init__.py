"""Rollouts: a route's next model takes over its requests step by step, and leaves again by itself where it is worse.

`domain/` decides (pure), `rollouts` carries out, `contracts` compares models before the first request.
"""
