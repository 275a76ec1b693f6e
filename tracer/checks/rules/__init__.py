"""``check_rule`` and its parts: a rule held against torch and against differences, over arguments drawn for it."""
