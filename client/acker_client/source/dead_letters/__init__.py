"""Where dead letters go: a file, objects in a store, a table, the log, a function. Other stores implement
``records.stores``.

Entry points: ``letters_file.DeadLetterFile``, ``letter_objects.DeadLetterObjects``, ``letters_table.Table``.
"""

from acker_client.source.dead_letters.letter_objects import DeadLetterObjects
from acker_client.source.dead_letters.letters_table import Table

__all__ = ["DeadLetterObjects", "Table"]
