"""Requests in flight: the stages of each from arrival to end, the registry of all, and the records that they leave."""
