"""`tidegate tune`: measures how a model is served best on this machine, and writes the configuration.

`domain/search` chooses what to measure and decides; `tuner` carries that out on servers of its own.
"""
