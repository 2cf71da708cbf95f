"""How the server is reached: one connection per process and target, transactions tried again, errors explained."""
