"""The doors: each parses what came, calls one service method, and renders what it returns."""
