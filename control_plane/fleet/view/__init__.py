"""View: the fleet as this process sees it, by which all policies decide.

`state` is the view, and nothing outside this folder writes to it; `model_specs`, `reservations`, `measurements`
and `memory` keep its parts true.
"""
