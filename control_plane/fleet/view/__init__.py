"""View: the fleet as this process sees it, by which all policies decide.

`state` is the view, and nothing outside this folder writes to it; `models`, `health`, `reservations` and `memory` keep
its parts true.
"""
