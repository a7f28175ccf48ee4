"""Row groups of local Parquet files as a source. Entry points: ``parquet.Parquet``, ``input.ParquetInput``."""

from acker_client.source.parquet.parquet import Parquet

__all__ = ["Parquet"]
