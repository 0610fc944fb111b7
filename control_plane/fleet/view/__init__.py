"""View: the fleet's state as this process sees it, which all decisions read.

`state` is the view, and nothing outside this folder writes to it; `models`, `health`, `reservations` and `memory` keep
its parts up to date.
"""
