"""Lines of local files, plain or gzip, as a source. Entry points: ``files.Files``, ``input.FileInput``."""
