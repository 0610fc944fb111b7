"""Commands that call a running gateway's admin API: each changes or shows one kind of object."""
