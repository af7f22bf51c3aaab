"""A bench whose target is on a server, which needs the extra `live`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from msgspec import structs

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import stated
from specbench_kit.decoding.loop import DecodingSetup, Loop
from specbench_kit.live.assembly import remote_loop, streamed_loop
from specbench_kit.live.pair import ServedPair, load_draft_models, load_heads
from specbench_kit.live.server_address import ServerAddress
from specbench_kit.live.servers import ServerConnection, VerifierSetup, connect
from specbench_kit.live.states import NUMBER_BYTES
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.catalogue import locate
from specbench_kit.models.draft_library import HEAD
from specbench_kit.runs.document import HiddenStates, RunFields
from specbench_kit.studies.bench.judges import ServedOutputJudge
from specbench_kit.studies.bench.preparation import needed_models
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.bench.workbench import Workbench


def connect_pair(settings: BenchSettings, server: str) -> tuple[ServerConnection, ServedPair]:
    """Load the models that the methods draft with, and connect to the server of their target."""
    target = locate(settings.target, "target")
    needed = needed_models(settings)
    kind = {"device": settings.device, "dtype": settings.dtype, "executor": settings.executor}
    drafts = load_draft_models(settings.draft, needed, target, **kind)
    address = ServerAddress(server, settings, settings.link, settings.server_silence)
    try:
        connection = connect(address, drafts)
    except SkitError as error:
        if not settings.resume:
            raise
        raise SkitError(
            f"{error}; skit report shows what is finished, without the server"
        ) from error
    if settings.constraint is not None:
        try:
            connection.require_masking()
        except SkitError:
            connection.close()
            raise
    names = [name for name in needed if name.startswith(HEAD)]
    heads = load_heads(
        names, connection.target, target, device=settings.device, dtype=settings.dtype
    )
    return connection, drafts.with_target(connection.target, heads)


@dataclass(eq=False)
class ServedBench(Workbench):
    """A bench whose target a `server` computes; this machine drafts, or only reads what the server
    decodes by itself.
    """

    server: ServerConnection = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.server.require_grammars(self.prompts.grammars.specs)

    @cached_property
    def output_judge(self) -> ServedOutputJudge:
        """Return the judge that asks the server for evidence."""
        grammar_of = self.prompts.grammars.spec_of
        return ServedOutputJudge(self.server.target.bitwise, self.server.judge, grammar_of)

    @property
    def worker_clock(self) -> None:
        """Return None: the processes that work for this one are the server's."""
        return None

    def loop(self, method: Method, started_s: float = 0.0) -> Loop:
        """Return a decoding loop of the method whose clock starts at `started_s`."""
        if method.pipeline is None and not method.uses_drafter:
            return self._streamed("", started_s)
        return remote_loop(
            method,
            self.runners,
            lambda clock: self.server.verifier(
                VerifierSetup(
                    self.sampler,
                    self.settings.seed,
                    clock,
                    method.drafting.layers(self.runners),
                    method.ahead,
                )
            ),
            self.setup(started_s),
        )

    def server_only_loop(self, spec: str, started_s: float = 0.0) -> Loop | None:
        """Return the loop over responses that the server decodes by itself with a method; None if
        it does not.
        """
        draft = self.models.get("draft")
        offered = self.server.offered(parse_method(spec), draft.hash if draft else None)
        return None if offered is None else self._streamed(offered, started_s)

    def _streamed(self, method: str, started_s: float) -> Loop:
        stream = self.server.stream(self.sampler, self.settings.seed, method)
        return streamed_loop(stream, self.setup(started_s))

    def setup(self, started_s: float) -> DecodingSetup:
        """Return what all decoding loops are made with: no text is longer than the server takes."""
        capacities = (runner.capacity for runner in self.runners.values())
        capacity = min([self.server.target.context, *capacities])
        return super().setup(started_s).within(capacity)

    def describe_server(self) -> RunFields:
        """Return the parts of `run.json` about the server."""
        fields: RunFields = stated(self.server.describe())
        return fields

    @property
    def reconnections(self) -> int:
        """Return how often the connection to the server was lost and found again."""
        return self.server.reconnections

    @property
    def notes(self) -> Sequence[str]:
        """Return lines for the user about the models and the server."""
        return [*super().notes, *self.server.notes]

    def describe_hidden_states(self, method: Method) -> RunFields:
        """Return the part `hidden_states` of `run.json` if verdicts carry hidden states over the
        wire.
        """
        layers = tuple(method.drafting.layers(self.runners))
        sent = HiddenStates(layers, NUMBER_BYTES * self.server.target.hidden_size * len(layers))
        return {"hidden_states": structs.asdict(sent)} if layers else {}

    def close(self) -> None:
        """End the connection to the server."""
        self.server.close()
