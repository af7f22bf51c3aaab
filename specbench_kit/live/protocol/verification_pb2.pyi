from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Hello(_message.Message):
    __slots__ = ("protocol", "tokenizer", "vocabulary", "token", "model_hash", "device")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    tokenizer: str
    vocabulary: int
    token: str
    model_hash: str
    device: str
    def __init__(self, protocol: _Optional[int] = ..., tokenizer: _Optional[str] = ..., vocabulary: _Optional[int] = ..., token: _Optional[str] = ..., model_hash: _Optional[str] = ..., device: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("sessions", "nodes", "context", "frame_bytes", "credit", "candidates", "batch", "slots", "ahead")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    nodes: int
    context: int
    frame_bytes: int
    credit: int
    candidates: int
    batch: int
    slots: int
    ahead: int
    def __init__(self, sessions: _Optional[int] = ..., nodes: _Optional[int] = ..., context: _Optional[int] = ..., frame_bytes: _Optional[int] = ..., credit: _Optional[int] = ..., candidates: _Optional[int] = ..., batch: _Optional[int] = ..., slots: _Optional[int] = ..., ahead: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "server", "model", "model_hash", "tokenizer", "vocabulary", "eos_ids", "bitwise", "parameters", "dtype", "scheduler", "device", "limits", "heartbeat_s", "generates", "drafting", "draft_hash", "layers", "hidden_size", "scored", "grammar_bytes")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    EOS_IDS_FIELD_NUMBER: _ClassVar[int]
    BITWISE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    GENERATES_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_FIELD_NUMBER: _ClassVar[int]
    DRAFT_HASH_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    SCORED_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_BYTES_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    server: str
    model: str
    model_hash: str
    tokenizer: str
    vocabulary: int
    eos_ids: _containers.RepeatedScalarFieldContainer[int]
    bitwise: bool
    parameters: int
    dtype: str
    scheduler: str
    device: str
    limits: Limits
    heartbeat_s: float
    generates: bool
    drafting: _containers.RepeatedScalarFieldContainer[str]
    draft_hash: str
    layers: int
    hidden_size: int
    scored: int
    grammar_bytes: int
    def __init__(self, protocol: _Optional[int] = ..., server: _Optional[str] = ..., model: _Optional[str] = ..., model_hash: _Optional[str] = ..., tokenizer: _Optional[str] = ..., vocabulary: _Optional[int] = ..., eos_ids: _Optional[_Iterable[int]] = ..., bitwise: bool = ..., parameters: _Optional[int] = ..., dtype: _Optional[str] = ..., scheduler: _Optional[str] = ..., device: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., heartbeat_s: _Optional[float] = ..., generates: bool = ..., drafting: _Optional[_Iterable[str]] = ..., draft_hash: _Optional[str] = ..., layers: _Optional[int] = ..., hidden_size: _Optional[int] = ..., scored: _Optional[int] = ..., grammar_bytes: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "seed", "request")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    seed: int
    request: str
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., seed: _Optional[int] = ..., request: _Optional[str] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("session", "prompt", "output", "sampling", "layers", "silence_ms", "max_tokens", "ends", "ahead", "grammar", "skip_forced")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    SILENCE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    SKIP_FORCED_FIELD_NUMBER: _ClassVar[int]
    session: str
    prompt: _containers.RepeatedScalarFieldContainer[int]
    output: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    layers: _containers.RepeatedScalarFieldContainer[int]
    silence_ms: int
    max_tokens: int
    ends: _containers.RepeatedScalarFieldContainer[int]
    ahead: int
    grammar: str
    skip_forced: bool
    def __init__(self, session: _Optional[str] = ..., prompt: _Optional[_Iterable[int]] = ..., output: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., layers: _Optional[_Iterable[int]] = ..., silence_ms: _Optional[int] = ..., max_tokens: _Optional[int] = ..., ends: _Optional[_Iterable[int]] = ..., ahead: _Optional[int] = ..., grammar: _Optional[str] = ..., skip_forced: bool = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("session", "committed", "cached")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    session: str
    committed: int
    cached: int
    def __init__(self, session: _Optional[str] = ..., committed: _Optional[int] = ..., cached: _Optional[int] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("session", "round", "base", "tokens", "parents", "counts", "ids", "probabilities", "round_ms", "remaining_ms", "states", "text_hash")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    ROUND_MS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    TEXT_HASH_FIELD_NUMBER: _ClassVar[int]
    session: str
    round: int
    base: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    probabilities: _containers.RepeatedScalarFieldContainer[float]
    round_ms: float
    remaining_ms: float
    states: int
    text_hash: int
    def __init__(self, session: _Optional[str] = ..., round: _Optional[int] = ..., base: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., ids: _Optional[_Iterable[int]] = ..., probabilities: _Optional[_Iterable[float]] = ..., round_ms: _Optional[float] = ..., remaining_ms: _Optional[float] = ..., states: _Optional[int] = ..., text_hash: _Optional[int] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("session", "round", "status", "path", "bonus", "queue_us", "verify_us", "batch_size", "cached", "computed", "credit", "suffix", "batch_number", "expected_us", "waiting", "states", "padded", "base", "forced")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    BONUS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    VERIFY_US_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    SUFFIX_FIELD_NUMBER: _ClassVar[int]
    BATCH_NUMBER_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_US_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    PADDED_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    session: str
    round: int
    status: int
    path: _containers.RepeatedScalarFieldContainer[int]
    bonus: int
    queue_us: int
    verify_us: int
    batch_size: int
    cached: int
    computed: int
    credit: int
    suffix: _containers.RepeatedScalarFieldContainer[int]
    batch_number: int
    expected_us: int
    waiting: int
    states: bytes
    padded: _containers.RepeatedScalarFieldContainer[int]
    base: int
    forced: int
    def __init__(self, session: _Optional[str] = ..., round: _Optional[int] = ..., status: _Optional[int] = ..., path: _Optional[_Iterable[int]] = ..., bonus: _Optional[int] = ..., queue_us: _Optional[int] = ..., verify_us: _Optional[int] = ..., batch_size: _Optional[int] = ..., cached: _Optional[int] = ..., computed: _Optional[int] = ..., credit: _Optional[int] = ..., suffix: _Optional[_Iterable[int]] = ..., batch_number: _Optional[int] = ..., expected_us: _Optional[int] = ..., waiting: _Optional[int] = ..., states: _Optional[bytes] = ..., padded: _Optional[_Iterable[int]] = ..., base: _Optional[int] = ..., forced: _Optional[int] = ...) -> None: ...

class Generate(_message.Message):
    __slots__ = ("session", "round", "base", "max_tokens", "ends", "method", "round_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    ROUND_MS_FIELD_NUMBER: _ClassVar[int]
    session: str
    round: int
    base: int
    max_tokens: int
    ends: _containers.RepeatedScalarFieldContainer[int]
    method: str
    round_ms: float
    def __init__(self, session: _Optional[str] = ..., round: _Optional[int] = ..., base: _Optional[int] = ..., max_tokens: _Optional[int] = ..., ends: _Optional[_Iterable[int]] = ..., method: _Optional[str] = ..., round_ms: _Optional[float] = ...) -> None: ...

class Generated(_message.Message):
    __slots__ = ("session", "round", "status", "base", "tokens", "last", "queue_us", "verify_us", "batch_size", "cached", "computed", "drafted", "submitted", "accepted", "draft_us", "batch_number", "padded", "forced", "forbidden", "forced_submitted", "forced_accepted")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    VERIFY_US_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    BATCH_NUMBER_FIELD_NUMBER: _ClassVar[int]
    PADDED_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    FORBIDDEN_FIELD_NUMBER: _ClassVar[int]
    FORCED_SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    FORCED_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    session: str
    round: int
    status: int
    base: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    last: bool
    queue_us: int
    verify_us: int
    batch_size: int
    cached: int
    computed: int
    drafted: int
    submitted: int
    accepted: int
    draft_us: int
    batch_number: int
    padded: _containers.RepeatedScalarFieldContainer[int]
    forced: int
    forbidden: int
    forced_submitted: int
    forced_accepted: int
    def __init__(self, session: _Optional[str] = ..., round: _Optional[int] = ..., status: _Optional[int] = ..., base: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., last: bool = ..., queue_us: _Optional[int] = ..., verify_us: _Optional[int] = ..., batch_size: _Optional[int] = ..., cached: _Optional[int] = ..., computed: _Optional[int] = ..., drafted: _Optional[int] = ..., submitted: _Optional[int] = ..., accepted: _Optional[int] = ..., draft_us: _Optional[int] = ..., batch_number: _Optional[int] = ..., padded: _Optional[_Iterable[int]] = ..., forced: _Optional[int] = ..., forbidden: _Optional[int] = ..., forced_submitted: _Optional[int] = ..., forced_accepted: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class RoundShape(_message.Message):
    __slots__ = ("submitted", "accepted", "committed", "parents", "path", "padded", "forced")
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PADDED_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    submitted: int
    accepted: int
    committed: int
    parents: _containers.RepeatedScalarFieldContainer[int]
    path: _containers.RepeatedScalarFieldContainer[int]
    padded: _containers.RepeatedScalarFieldContainer[int]
    forced: int
    def __init__(self, submitted: _Optional[int] = ..., accepted: _Optional[int] = ..., committed: _Optional[int] = ..., parents: _Optional[_Iterable[int]] = ..., path: _Optional[_Iterable[int]] = ..., padded: _Optional[_Iterable[int]] = ..., forced: _Optional[int] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("session", "prompt", "output", "sampling", "position", "expected", "rounds", "plain", "grammar", "forced_first", "plain_forced_first")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIRST_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FORCED_FIRST_FIELD_NUMBER: _ClassVar[int]
    session: str
    prompt: _containers.RepeatedScalarFieldContainer[int]
    output: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    position: int
    expected: int
    rounds: _containers.RepeatedCompositeFieldContainer[RoundShape]
    plain: _containers.RepeatedCompositeFieldContainer[RoundShape]
    grammar: str
    forced_first: int
    plain_forced_first: int
    def __init__(self, session: _Optional[str] = ..., prompt: _Optional[_Iterable[int]] = ..., output: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., position: _Optional[int] = ..., expected: _Optional[int] = ..., rounds: _Optional[_Iterable[_Union[RoundShape, _Mapping]]] = ..., plain: _Optional[_Iterable[_Union[RoundShape, _Mapping]]] = ..., grammar: _Optional[str] = ..., forced_first: _Optional[int] = ..., plain_forced_first: _Optional[int] = ...) -> None: ...

class ShapeChoice(_message.Message):
    __slots__ = ("token", "shortfall")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SHORTFALL_FIELD_NUMBER: _ClassVar[int]
    token: int
    shortfall: float
    def __init__(self, token: _Optional[int] = ..., shortfall: _Optional[float] = ...) -> None: ...

class DivergenceScores(_message.Message):
    __slots__ = ("position", "token", "expected", "margin", "are_best", "verified", "plain", "precise_margin")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    MARGIN_FIELD_NUMBER: _ClassVar[int]
    ARE_BEST_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    PRECISE_MARGIN_FIELD_NUMBER: _ClassVar[int]
    position: int
    token: int
    expected: int
    margin: float
    are_best: bool
    verified: ShapeChoice
    plain: ShapeChoice
    precise_margin: float
    def __init__(self, position: _Optional[int] = ..., token: _Optional[int] = ..., expected: _Optional[int] = ..., margin: _Optional[float] = ..., are_best: bool = ..., verified: _Optional[_Union[ShapeChoice, _Mapping]] = ..., plain: _Optional[_Union[ShapeChoice, _Mapping]] = ..., precise_margin: _Optional[float] = ...) -> None: ...

class Scored(_message.Message):
    __slots__ = ("session", "noise", "control", "precise_noise", "divergences", "score_us", "forwards")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    PRECISE_NOISE_FIELD_NUMBER: _ClassVar[int]
    DIVERGENCES_FIELD_NUMBER: _ClassVar[int]
    SCORE_US_FIELD_NUMBER: _ClassVar[int]
    FORWARDS_FIELD_NUMBER: _ClassVar[int]
    session: str
    noise: float
    control: float
    precise_noise: float
    divergences: _containers.RepeatedCompositeFieldContainer[DivergenceScores]
    score_us: int
    forwards: int
    def __init__(self, session: _Optional[str] = ..., noise: _Optional[float] = ..., control: _Optional[float] = ..., precise_noise: _Optional[float] = ..., divergences: _Optional[_Iterable[_Union[DivergenceScores, _Mapping]]] = ..., score_us: _Optional[int] = ..., forwards: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("session", "round", "status", "reason", "retry_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_MS_FIELD_NUMBER: _ClassVar[int]
    session: str
    round: int
    status: int
    reason: str
    retry_ms: int
    def __init__(self, session: _Optional[str] = ..., round: _Optional[int] = ..., status: _Optional[int] = ..., reason: _Optional[str] = ..., retry_ms: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class Up(_message.Message):
    __slots__ = ("hello", "open", "draft", "close", "ping", "generate", "cancel", "score")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    open: Open
    draft: Draft
    close: Close
    ping: Ping
    generate: Generate
    cancel: Cancel
    score: Score
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., draft: _Optional[_Union[Draft, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., generate: _Optional[_Union[Generate, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., score: _Optional[_Union[Score, _Mapping]] = ...) -> None: ...

class Down(_message.Message):
    __slots__ = ("welcome", "opened", "verdict", "refused", "pong", "generated", "scored")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    SCORED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    opened: Opened
    verdict: Verdict
    refused: Refused
    pong: Pong
    generated: Generated
    scored: Scored
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., generated: _Optional[_Union[Generated, _Mapping]] = ..., scored: _Optional[_Union[Scored, _Mapping]] = ...) -> None: ...
