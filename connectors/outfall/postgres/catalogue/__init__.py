"""What the server says of tables: their columns, what goes into them, and who may write there."""
