"""Paths of the admin API, one module for each kind of resource; `admin/api` puts them together."""
