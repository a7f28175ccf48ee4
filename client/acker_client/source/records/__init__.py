"""Records: what a run knows about each record (planned, in flight, acked, waiting for a retry), and the
interfaces of inputs and stores. Pure.

Entry points: ``tracker.Tracker``, ``in_flight``, ``retry.Retry``, ``ranges.Ranges``, ``input.Input``, ``stores``.
"""
