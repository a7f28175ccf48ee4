"""State: the file that a server writes when it stops and reads when it starts.

Entry points: ``saved_state.SavedState`` (the state of one server), ``state_file.StateDir`` (the file).
"""
