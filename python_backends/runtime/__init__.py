"""What the backends share: Triton's model configuration, an ONNX Runtime session, and running requests on it in groups.

Only `triton.py` touches the server's own module; everything else is plain Python and NumPy.
"""
