"""Declared objects: the kinds that files may declare, how they are applied, and the paths of the admin API for them."""
