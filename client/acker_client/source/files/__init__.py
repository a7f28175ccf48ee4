"""Lines of local files, plain or gzip, as a source. Entry points: ``files.Files``, ``input.FileInput``."""

from acker_client.source.files.files import Files

__all__ = ["Files"]
