"""``torch.func`` on our own rules: its names, its signatures, and what it lacks."""
