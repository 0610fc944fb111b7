"""Building blocks for asyncio code that know nothing of the gateway: waiting, sharing and ending tasks."""
