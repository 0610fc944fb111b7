"""`tidegate tune`: finds a model's best configuration on this machine by measurement, and writes it.

`domain/search` chooses the candidates and decides; `tuner` measures them on Tritons that it starts for that.
"""
