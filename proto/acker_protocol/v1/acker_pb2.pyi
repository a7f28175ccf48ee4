from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_UNSPECIFIED: _ClassVar[Status]
    STATUS_APPLIED: _ClassVar[Status]
    STATUS_DUPLICATE: _ClassVar[Status]
    STATUS_CONFLICT: _ClassVar[Status]
    STATUS_STALE: _ClassVar[Status]
    STATUS_OVERLOADED: _ClassVar[Status]
    STATUS_UNKNOWN_SOURCE: _ClassVar[Status]
    STATUS_UNKNOWN_BATCH: _ClassVar[Status]
    STATUS_INVALID: _ClassVar[Status]
    STATUS_DRAINING: _ClassVar[Status]

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_ACKED: _ClassVar[Verdict]
    VERDICT_FAILED: _ClassVar[Verdict]
    VERDICT_TIMED_OUT: _ClassVar[Verdict]
    VERDICT_LOST: _ClassVar[Verdict]

class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAUSE_UNSPECIFIED: _ClassVar[Cause]
    CAUSE_MESSAGE_TIMEOUT: _ClassVar[Cause]
    CAUSE_PROGRESS_TIMEOUT: _ClassVar[Cause]
    CAUSE_UNFINISHED: _ClassVar[Cause]
    CAUSE_ABANDONED: _ClassVar[Cause]
    CAUSE_UNREAD: _ClassVar[Cause]
    CAUSE_ROOT_CONFLICT: _ClassVar[Cause]

class MemberState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMBER_STATE_UNSPECIFIED: _ClassVar[MemberState]
    MEMBER_STATE_ACTIVE: _ClassVar[MemberState]
    MEMBER_STATE_DRAINING: _ClassVar[MemberState]
    MEMBER_STATE_AWAY: _ClassVar[MemberState]

class Settlement(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SETTLEMENT_UNSPECIFIED: _ClassVar[Settlement]
    SETTLEMENT_DONE: _ClassVar[Settlement]
    SETTLEMENT_ABANDON: _ClassVar[Settlement]
STATUS_UNSPECIFIED: Status
STATUS_APPLIED: Status
STATUS_DUPLICATE: Status
STATUS_CONFLICT: Status
STATUS_STALE: Status
STATUS_OVERLOADED: Status
STATUS_UNKNOWN_SOURCE: Status
STATUS_UNKNOWN_BATCH: Status
STATUS_INVALID: Status
STATUS_DRAINING: Status
VERDICT_UNSPECIFIED: Verdict
VERDICT_ACKED: Verdict
VERDICT_FAILED: Verdict
VERDICT_TIMED_OUT: Verdict
VERDICT_LOST: Verdict
CAUSE_UNSPECIFIED: Cause
CAUSE_MESSAGE_TIMEOUT: Cause
CAUSE_PROGRESS_TIMEOUT: Cause
CAUSE_UNFINISHED: Cause
CAUSE_ABANDONED: Cause
CAUSE_UNREAD: Cause
CAUSE_ROOT_CONFLICT: Cause
MEMBER_STATE_UNSPECIFIED: MemberState
MEMBER_STATE_ACTIVE: MemberState
MEMBER_STATE_DRAINING: MemberState
MEMBER_STATE_AWAY: MemberState
SETTLEMENT_UNSPECIFIED: Settlement
SETTLEMENT_DONE: Settlement
SETTLEMENT_ABANDON: Settlement

class HelloRequest(_message.Message):
    __slots__ = ("protocol_version", "client_version")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    client_version: str
    def __init__(self, protocol_version: _Optional[int] = ..., client_version: _Optional[str] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("protocol_version", "server_version", "incarnation", "max_message_bytes", "sequence_window", "id", "generation", "is_draining", "epoch", "ensemble")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_WINDOW_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    server_version: str
    incarnation: int
    max_message_bytes: int
    sequence_window: int
    id: int
    generation: int
    is_draining: bool
    epoch: int
    ensemble: int
    def __init__(self, protocol_version: _Optional[int] = ..., server_version: _Optional[str] = ..., incarnation: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., sequence_window: _Optional[int] = ..., id: _Optional[int] = ..., generation: _Optional[int] = ..., is_draining: bool = ..., epoch: _Optional[int] = ..., ensemble: _Optional[int] = ...) -> None: ...

class Identity(_message.Message):
    __slots__ = ("high", "low", "sequenced")
    HIGH_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    SEQUENCED_FIELD_NUMBER: _ClassVar[int]
    high: int
    low: int
    sequenced: bool
    def __init__(self, high: _Optional[int] = ..., low: _Optional[int] = ..., sequenced: bool = ...) -> None: ...

class Inits(_message.Message):
    __slots__ = ("session", "batch", "covered")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    COVERED_FIELD_NUMBER: _ClassVar[int]
    session: int
    batch: int
    covered: bytes
    def __init__(self, session: _Optional[int] = ..., batch: _Optional[int] = ..., covered: _Optional[bytes] = ...) -> None: ...

class ApplyRequest(_message.Message):
    __slots__ = ("identity", "digest", "inits", "root_ids", "ack_vals", "kinds", "reason_ids", "reasons")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    INITS_FIELD_NUMBER: _ClassVar[int]
    ROOT_IDS_FIELD_NUMBER: _ClassVar[int]
    ACK_VALS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    REASON_IDS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    identity: Identity
    digest: int
    inits: Inits
    root_ids: bytes
    ack_vals: bytes
    kinds: bytes
    reason_ids: bytes
    reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, identity: _Optional[_Union[Identity, _Mapping]] = ..., digest: _Optional[int] = ..., inits: _Optional[_Union[Inits, _Mapping]] = ..., root_ids: _Optional[bytes] = ..., ack_vals: _Optional[bytes] = ..., kinds: _Optional[bytes] = ..., reason_ids: _Optional[bytes] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class ApplyReply(_message.Message):
    __slots__ = ("incarnation", "status", "section_statuses", "retry_delay_ms", "detail", "inits_known", "inits_conflicting", "epoch", "ensemble")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SECTION_STATUSES_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    INITS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    INITS_CONFLICTING_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    status: Status
    section_statuses: bytes
    retry_delay_ms: int
    detail: str
    inits_known: int
    inits_conflicting: int
    epoch: int
    ensemble: int
    def __init__(self, incarnation: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., section_statuses: _Optional[bytes] = ..., retry_delay_ms: _Optional[int] = ..., detail: _Optional[str] = ..., inits_known: _Optional[int] = ..., inits_conflicting: _Optional[int] = ..., epoch: _Optional[int] = ..., ensemble: _Optional[int] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("message_timeout_ms", "progress_timeout_ms")
    MESSAGE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    message_timeout_ms: int
    progress_timeout_ms: int
    def __init__(self, message_timeout_ms: _Optional[int] = ..., progress_timeout_ms: _Optional[int] = ...) -> None: ...

class OpenBatchRequest(_message.Message):
    __slots__ = ("session", "number", "first", "up_to", "held", "limits", "slots")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    UP_TO_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    session: int
    number: int
    first: int
    up_to: int
    held: bool
    limits: Limits
    slots: bytes
    def __init__(self, session: _Optional[int] = ..., number: _Optional[int] = ..., first: _Optional[int] = ..., up_to: _Optional[int] = ..., held: bool = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., slots: _Optional[bytes] = ...) -> None: ...

class OpenBatchReply(_message.Message):
    __slots__ = ("incarnation", "status", "retry_delay_ms", "detail", "epoch", "ensemble")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    status: Status
    retry_delay_ms: int
    detail: str
    epoch: int
    ensemble: int
    def __init__(self, incarnation: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., retry_delay_ms: _Optional[int] = ..., detail: _Optional[str] = ..., epoch: _Optional[int] = ..., ensemble: _Optional[int] = ...) -> None: ...

class SettleRequest(_message.Message):
    __slots__ = ("session", "number", "settlement")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SETTLEMENT_FIELD_NUMBER: _ClassVar[int]
    session: int
    number: int
    settlement: Settlement
    def __init__(self, session: _Optional[int] = ..., number: _Optional[int] = ..., settlement: _Optional[_Union[Settlement, str]] = ...) -> None: ...

class SettleReply(_message.Message):
    __slots__ = ("incarnation", "status", "detail", "cursor", "roots", "epoch", "generation", "ensemble")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    ROOTS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    status: Status
    detail: str
    cursor: int
    roots: int
    epoch: int
    generation: int
    ensemble: int
    def __init__(self, incarnation: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., detail: _Optional[str] = ..., cursor: _Optional[int] = ..., roots: _Optional[int] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., ensemble: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("source", "session", "lease_ms", "limits", "confirmed", "wait_ms", "max_outcomes", "close", "pins")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    source: str
    session: int
    lease_ms: int
    limits: Limits
    confirmed: int
    wait_ms: int
    max_outcomes: int
    close: bool
    pins: bytes
    def __init__(self, source: _Optional[str] = ..., session: _Optional[int] = ..., lease_ms: _Optional[int] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., confirmed: _Optional[int] = ..., wait_ms: _Optional[int] = ..., max_outcomes: _Optional[int] = ..., close: bool = ..., pins: _Optional[bytes] = ...) -> None: ...

class WatchReply(_message.Message):
    __slots__ = ("incarnation", "status", "detail", "is_new", "generation", "cursor", "root_ids", "verdicts", "reason_ids", "reasons", "lease_ms", "epoch", "pins_crc32", "causes", "ensemble")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    IS_NEW_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    ROOT_IDS_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    REASON_IDS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PINS_CRC32_FIELD_NUMBER: _ClassVar[int]
    CAUSES_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    status: Status
    detail: str
    is_new: bool
    generation: int
    cursor: int
    root_ids: bytes
    verdicts: bytes
    reason_ids: bytes
    reasons: _containers.RepeatedScalarFieldContainer[str]
    lease_ms: int
    epoch: int
    pins_crc32: int
    causes: bytes
    ensemble: int
    def __init__(self, incarnation: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., detail: _Optional[str] = ..., is_new: bool = ..., generation: _Optional[int] = ..., cursor: _Optional[int] = ..., root_ids: _Optional[bytes] = ..., verdicts: _Optional[bytes] = ..., reason_ids: _Optional[bytes] = ..., reasons: _Optional[_Iterable[str]] = ..., lease_ms: _Optional[int] = ..., epoch: _Optional[int] = ..., pins_crc32: _Optional[int] = ..., causes: _Optional[bytes] = ..., ensemble: _Optional[int] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("incarnation", "server_version", "values", "epoch", "ensemble")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    server_version: str
    values: _containers.ScalarMap[str, float]
    epoch: int
    ensemble: int
    def __init__(self, incarnation: _Optional[int] = ..., server_version: _Optional[str] = ..., values: _Optional[_Mapping[str, float]] = ..., epoch: _Optional[int] = ..., ensemble: _Optional[int] = ...) -> None: ...

class ViewRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Member(_message.Message):
    __slots__ = ("id", "generation", "address", "state", "away_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AWAY_MS_FIELD_NUMBER: _ClassVar[int]
    id: int
    generation: int
    address: str
    state: MemberState
    away_ms: int
    def __init__(self, id: _Optional[int] = ..., generation: _Optional[int] = ..., address: _Optional[str] = ..., state: _Optional[_Union[MemberState, str]] = ..., away_ms: _Optional[int] = ...) -> None: ...

class ViewReply(_message.Message):
    __slots__ = ("incarnation", "epoch", "ensemble", "members")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    epoch: int
    ensemble: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, incarnation: _Optional[int] = ..., epoch: _Optional[int] = ..., ensemble: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ("incarnation", "status", "detail", "epoch", "ensemble")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    status: Status
    detail: str
    epoch: int
    ensemble: int
    def __init__(self, incarnation: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., detail: _Optional[str] = ..., epoch: _Optional[int] = ..., ensemble: _Optional[int] = ...) -> None: ...

class PinsRequest(_message.Message):
    __slots__ = ("session", "root_id")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ROOT_ID_FIELD_NUMBER: _ClassVar[int]
    session: int
    root_id: int
    def __init__(self, session: _Optional[int] = ..., root_id: _Optional[int] = ...) -> None: ...

class PinsReply(_message.Message):
    __slots__ = ("incarnation", "status", "detail", "pins", "epoch", "ensemble")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    status: Status
    detail: str
    pins: bytes
    epoch: int
    ensemble: int
    def __init__(self, incarnation: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., detail: _Optional[str] = ..., pins: _Optional[bytes] = ..., epoch: _Optional[int] = ..., ensemble: _Optional[int] = ...) -> None: ...
