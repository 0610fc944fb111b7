"""General building blocks for asyncio: waiting with deadlines, sharing a computation, owning and ending tasks."""
