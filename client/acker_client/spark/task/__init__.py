"""What tasks carry and use in executors: rows, schemas, content, notes."""
