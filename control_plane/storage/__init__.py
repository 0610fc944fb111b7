"""How stores of state are reached: a Redis or an SQLite file, with deadlines and errors of ours.

What is kept there, and in which form, is the business of whoever keeps it.
"""
