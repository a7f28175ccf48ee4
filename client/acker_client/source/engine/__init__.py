"""Engine: one run of a source, from plan to checkpoint. The only package of sources that calls Spark or the acker.

Entry points: ``source.Source`` (what an input's constructor builds), ``run.Run`` (the loop over batches), ``options``.
Everything that the run knows about records is in ``records``.
"""
