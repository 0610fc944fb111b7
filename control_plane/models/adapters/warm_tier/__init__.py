"""Copies of models on this machine, between a cold source and the server: on disk, or in a memory file system.

    tier.py     the folder: who owns it, what it holds, what is taken out of it
    partial.py  a copy that is being fetched, by this life of the process or an earlier one

Under the folder, each subfolder is a model as the source has it, so that `managed_repository` takes the folder as one more source; what
is not for it lies under `.tidegate/`: `lock`, `copies/MODEL.json`, `partial/MODEL/VERSION-BOOT/`, `trash/`.
"""
