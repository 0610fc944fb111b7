"""Code that the backends share: Triton's model configuration, the runtimes, and running requests in groups.

Only `triton.py` touches the server's own module; everything else is plain Python and NumPy.
"""
