"""What callers see while something dies, freezes, is slow, is full, lies or is too much; `python -m perf.chaos`."""
