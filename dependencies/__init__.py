"""Locked dependencies: `lock.py` writes `constraints.txt`, `sections.py` prints the part of it that an
installation needs.
"""
