"""A training step, with our backward pass in it, as one graph of ATen ops: exported, replayed or compiled."""
