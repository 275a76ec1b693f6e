"""What formulas of several rule files share, one subject a file."""
