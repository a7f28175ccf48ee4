"""A simulation of a whole cluster: clients, network, servers and Spark, in virtual time, from one seed.

The client, the run of a source, the operators' arithmetic and the servers' shards are the real ones; what is around
them (threads, sockets, clocks, Spark) is played in one thread, in an order drawn from the seed. Half of the seeds stand
for jobs of Spark, the others for plain programs that emit, join, ack and fail. Oracles that share no code with them
(``oracle`` and ``trees``) say what may be reported. ``python -m tests.simulation --help``.
"""
