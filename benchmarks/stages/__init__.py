"""When a rank reached the parts of its start, told from inside it."""
