"""A Kinesis stream as a source, shard by shard, parents before children.

Entry points: ``kinesis.Kinesis``, ``input.KinesisInput``. ``connection`` is the only module that imports boto3.
"""
