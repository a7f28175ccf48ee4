"""Groups: sources that share the partitions of one input out among them."""
