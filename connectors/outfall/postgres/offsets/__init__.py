"""`delivery="offset"`: tasks publish independently, with keys that identify duplicate rows."""
