"""Cluster: which servers there are, where roots live, and one source's session with all of them.

Entry points: ``membership.Cluster`` (the servers), ``source_session.SourceSession`` (a source on every replica). The
session's docstring lists its parts, what each of them owns and which lock guards it. ``callers`` calls each server, and
``server_list`` makes the view if there is no registry. The decisions are in pure modules: ``votes`` (merges the
replicas' answers), ``pinned_batch``, ``open_batches``, ``stream`` (numbers the emissions of a plain client),
``published`` (what other processes need to find a root), ``registration``.
"""
