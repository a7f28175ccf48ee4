"""A simulation of a whole cluster: clients, network, servers and Spark, in virtual time, from one seed.

The code of the client, the sources, the operators' arithmetic and the servers' shards is real. Threads, sockets, clocks
and Spark are simulated in one thread, in an order drawn from the seed. Half of the seeds are Spark jobs. The others are
plain programs that emit, join, ack and fail. Oracles that share no code with the product (``oracle`` and ``trees``)
decide which outcomes are allowed. ``python -m tests.simulation --help``.
"""
