"""The packages that are installed: `constraints.txt`, how it is made (`lock.py`) and which part of it a purpose needs (`sections.py`)."""
