"""Models' files: repositories and stores, checks and digests of them, and the program that builds variants.

`managed_repository` is the folder that the embedded Triton reads; `validation` is what `tidegate models check` calls.
"""
