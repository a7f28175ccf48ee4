"""Sources of records. Each record ends in exactly one of two ways: it is acked, or it becomes a dead letter.

    from acker_client.source import Files, Retry

    source = Files("orders/*.jsonl", name="orders", checkpoint="orders.ckpt", dead_letters="dead.jsonl")
    print(source.run(spark, lambda batch: save(batch.df.transform(items))))

Needs the extra `spark` where it runs (pyarrow and PySpark); importing it needs pyarrow only.
"""

from types import ModuleType as _ModuleType

from acker_client.extras import missing as _missing

try:
    import pyarrow  # noqa: F401 (so that one error names the extra)
except ImportError as error:
    raise _missing("acker_client.source", "spark", error) from error

# One line for each package, which lists its public names in its own `__all__`. To add or delete an input, change only
# these lines and the input's own folder.
from acker_client.source.dead_letters import *
from acker_client.source.engine import *
from acker_client.source.errors import *
from acker_client.source.files import *
from acker_client.source.frame import *
from acker_client.source.kafka import *
from acker_client.source.kinesis import *
from acker_client.source.parquet import *
from acker_client.source.put_back import *
from acker_client.source.records import *
from acker_client.source.s3 import *
from acker_client.source.zookeeper import *

__all__ = [name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _ModuleType)]
