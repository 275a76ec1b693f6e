"""The way back: from a loss to the gradients of the leaves."""
