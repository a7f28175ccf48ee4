"""Checkpoints in S3, through boto3. Entry point: ``checkpoint.S3Checkpoint``."""

from acker_client.source.s3.checkpoint import S3Checkpoint

__all__ = ["S3Checkpoint"]
