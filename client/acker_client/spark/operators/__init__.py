"""The steps of a tracked pipeline: how each step anchors its output rows and acks its input rows."""
