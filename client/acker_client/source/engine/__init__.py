"""Engine: one run of a source, from plan to checkpoint. The only package of sources that calls Spark or the acker.

Entry points: ``source.Source`` (built by an input's constructor), ``run.Run`` (the loop over batches), ``options``. A
run has four parts: ``partitions``, ``batches``, ``outcomes`` and ``settling``. Its knowledge about records is in
``records``.
"""

from acker_client.source.engine.batch import Batch
from acker_client.source.engine.options import CommonOptions, Options
from acker_client.source.engine.source import Source

__all__ = ["Batch", "CommonOptions", "Options", "Source"]
