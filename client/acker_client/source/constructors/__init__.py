"""What a user makes a source with: one file for each kind of input."""
