"""The web console: a page of static files on the admin port, which shows what the admin API answers to the caller's key."""
