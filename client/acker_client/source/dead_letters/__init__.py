"""Dead letters: the file of records that have spent their retries. Other stores implement ``records.stores``."""
