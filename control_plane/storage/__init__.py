"""How stores of state are reached: a Redis, an SQLite file or the Kubernetes API server, with deadlines and errors of ours.

What is kept there, and in which form, is the business of whoever keeps it.
"""
