"""Access to the server: one connection per process and target, transactions with retries, translated errors."""
