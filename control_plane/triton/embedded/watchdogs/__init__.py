"""Watchdogs of the Triton of this machine: of its loads, and of the Python stubs of its models.

stubs.py              the stub processes of its Python models, and how they ended
load_watch.py         `models/ports.LoadWatch`: every load ends, and a failed one is explained
abandoned_load.py     program that answers Triton in place of a stub that died during a load
stub_watch.py         notices within half a second that the stub of a loaded model has died
watched.py            watches over whichever Triton runs now, embedded or adopted
"""
