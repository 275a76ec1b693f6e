"""``docs/ops.md``, written from the registry."""
