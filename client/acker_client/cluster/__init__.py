"""Cluster: which servers there are, where roots live, and one source's session with all of them.

Entry points: ``membership.Cluster`` (the servers), ``source_session.SourceSession`` (open, watch and settle batches on
every replica). The decisions are in pure modules: ``votes`` (merge the replicas' answers), ``pinned_batch``, ``stream``
(the emissions of a plain client), ``published`` (what other processes need to find a root), ``registration``.
"""
