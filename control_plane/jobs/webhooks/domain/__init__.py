"""Messages of webhooks with their signatures, and which URLs they may go to. Pure."""
