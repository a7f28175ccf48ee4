"""The file of dead letters: records that have used up their retries. Other stores implement ``records.stores``."""
