"""The steps of a pipeline: how each of them keeps the account of its rows."""
