"""``python -m tracer REPORT script.py``: a script runs as it is, under a graph, and the report comes after it."""
