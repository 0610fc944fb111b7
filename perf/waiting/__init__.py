"""What 2,000 waiting requests and large uploads cost everybody else; `python -m perf.waiting`."""
