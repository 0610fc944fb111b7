"""Wiring of one process that answers requests: its frontends and the services behind them."""
