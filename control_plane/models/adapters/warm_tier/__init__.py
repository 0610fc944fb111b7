"""Warm tier: copies of models on this machine, on disk or in a memory file system, between a cold store and
the server.

    tier.py     the folder: its lock, the copies in it, their removal
    partial.py  a copy that is being fetched, by this process or an earlier one

Each subfolder of the tier's folder is a model as the store has it, so that `managed_repository` can use the
folder as one more source. Everything else lies under `.tidegate/`: `lock`, `copies/MODEL.json`,
`partial/MODEL/VERSION-BOOT/`, `trash/`.
"""
