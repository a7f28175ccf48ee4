from acker_testing import Dead as Dead
from acker_testing import LocalServer as LocalServer
from acker_testing import LocalTransport as LocalTransport
from acker_testing import Outcome as Outcome
from acker_testing import Pipeline as Pipeline
from acker_testing import Result as Result
from acker_testing import SimulatedTime as SimulatedTime
from acker_testing import new_shard as new_shard
