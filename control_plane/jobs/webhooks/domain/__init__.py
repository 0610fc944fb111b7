"""Signed messages of webhooks, and the rules on which URLs and addresses they may go to. Pure."""
