"""Commands on who may call, how much, and what it costs."""
