"""Reports: what was recorded, and what a backward pass through it does. Each answers one question, in text and in rows."""
