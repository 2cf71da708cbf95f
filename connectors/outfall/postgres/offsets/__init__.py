"""`delivery="offset"`: tasks publish by themselves, under keys that tell a second copy of a row from the first."""
