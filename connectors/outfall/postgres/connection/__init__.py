"""The port to a server: connections, transactions, what a DSN says, why one is refused, what errors mean."""
