"""A Kinesis stream as a source, shard by shard, parents before children.

Entry points: ``kinesis.Kinesis``, ``input.KinesisInput``. ``connection`` is the only module that imports boto3.
"""

from acker_client.source.kinesis.kinesis import Kinesis

__all__ = ["Kinesis"]
