"""Decisions and codecs of the response cache: what a lookup is worth, and how a response is kept. Pure; `eviction`
chooses what stays.
"""
