"""Row groups of local Parquet files as a source. Entry points: ``parquet.Parquet``, ``input.ParquetInput``."""
