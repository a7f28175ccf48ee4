"""Where a source keeps what has to outlast it: the checkpoint and the dead letters."""
