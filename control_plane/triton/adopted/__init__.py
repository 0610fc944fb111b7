"""Adopted Triton: one that others start and stop on this machine, or in this pod, and into which only this node loads.

    launcher.py    `triton/ports.TritonLauncher` and `TritonProcess` of a Triton that runs already
    adoption.py    what it must be like for that: explicit model control, our repository, a lock; and empty
    processes.py   its processes, where this one sees them

A gateway's `triton/attachment` attaches to Tritons of which it knows nothing but their answers. Here the model
repository is shared, and nobody else loads, so all is known that is known of an embedded one.
"""
