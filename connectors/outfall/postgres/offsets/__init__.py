"""`parts` and `offset_columns`: tasks publish independently, with keys that identify duplicate rows."""
