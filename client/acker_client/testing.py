"""Testing: a real shard in memory behind the transport port, for unit tests without a server, a socket or a wait.

    time = SimulatedTime()
    server = LocalServer(clock=time.clock, sleep=time.sleep)
    client = AckerClient(connect=server.connect, clock=time.clock, sleep=time.sleep)
"""
