"""A simulation of a whole cluster: clients, network, servers and Spark, in virtual time, from one seed.

The client, the run of a source, the operators' arithmetic and the servers' shards are the real ones; what is around
them (threads, sockets, clocks, Spark) is played in one thread, in an order drawn from the seed. An oracle that shares
no code with them says what may be reported. ``python -m tests.simulation --help``.
"""
