"""What a graph notes beside its nodes: every call with its site, where histories ended, whether results are finite, values."""
