"""The kinds of input, each behind the port of ``core.input``. What reads in executors needs neither gRPC nor Spark."""
