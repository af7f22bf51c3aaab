"""Drafts of Medusa heads, which guess a whole block of tokens in one forward of small heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from specbench_kit.core.errors import SkitError, require
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafter import Draft, Forwarded
from specbench_kit.decoding.drafting.base import Capability, DrafterParts, Drafting, drafters
from specbench_kit.decoding.drafting.chains import ReportingChainDrafter
from specbench_kit.decoding.latency import LatencyModel
from specbench_kit.decoding.masking import masked
from specbench_kit.decoding.sampling import draw
from specbench_kit.decoding.session import Session
from specbench_kit.models.draft_library import OWN_MEDUSA, named
from specbench_kit.models.executors.base import Forward
from specbench_kit.models.runner import Append, Runner, refuse_nan

if TYPE_CHECKING:
    from specbench_kit.models.executors.medusa import MedusaExecutor

NAME = "medusa"


@drafters.register(NAME)
@dataclass(frozen=True)
class MedusaDrafting(Drafting):
    """The Medusa heads in a folder, as `skit train-head --kind medusa` wrote it; `auto` are the
    target's own.

    The first `size` heads draft as many tokens in one forward, each without having seen the ones
    before it. A round has one block, so that longer chains end there. Nothing is drafted before the
    target has processed the prompt. Under a deployment a block takes one forward of its drafter,
    and methods that weigh time count 1/`size` of it per token.
    """

    path: str = "auto"
    size: int = 4
    capability = Capability.STATISTICS
    recordable = True
    reads_states = True

    def __post_init__(self) -> None:
        require(self.size >= 1, f"{NAME}: size must be at least 1, not {self.size}")

    @property
    def models(self) -> tuple[str, ...]:
        return (named(OWN_MEDUSA if self.path == "auto" else self.path),)

    @property
    def tokens_per_forward(self) -> int:
        return self.size

    def layers(self, models: "Mapping[str, Runner]") -> Sequence[int]:
        return self._executor(models).reads

    def source(self, parts: DrafterParts) -> "MedusaDrafter":
        (name,) = self.models
        return MedusaDrafter(parts, parts.models[name], self._executor(parts.models), self.size)

    def latencies(self, draft: LatencyModel) -> Mapping[str, LatencyModel]:
        return {NAME: draft}

    def _executor(self, models: "Mapping[str, Runner]") -> "MedusaExecutor":
        # Not above: a list of drafters is spared the imports of the executor.
        from specbench_kit.models.executors.medusa import MedusaExecutor

        (name,) = self.models
        executor = models[name].executor
        if not isinstance(executor, MedusaExecutor):
            raise SkitError(
                f"{NAME}: '{self.path}' holds an EAGLE head: draft with it by drafter=head.path={self.path}"
            )
        heads = executor.model.config.heads
        require(
            self.size <= heads,
            f"{NAME}: there are {heads} heads, so that size must be at most that",
        )
        return executor


class MedusaDrafter(ReportingChainDrafter):
    """Drafts a block per round from the target's hidden state of the token before the newest
    one.
    """

    def __init__(
        self, parts: DrafterParts, runner: Runner, executor: "MedusaExecutor", size: int
    ) -> None:
        super().__init__(NAME, parts.clock)
        self._runner = runner
        self._executor = executor
        self._sampler = parts.sampler
        self._sampled = parts.sampled
        self._capacity = parts.capacity
        self._size = size
        self._slots: dict[str, int] = {}
        self._blocks: dict[str, DraftForward] = {}
        """By request, the distributions of this round's block; each row was drawn from at most
        once.
        """

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees."""
        self._forwards.clear()
        self._blocks.clear()
        return super().begin(sessions)

    def room(self, draft: Draft) -> int:
        """Return how many tokens the block still has; none before the prompt's hidden states are
        known.
        """
        left = min(self._size, self._capacity - draft.context_length - 1) - draft.tree.last
        return left if draft.request_id in self._slots else 0

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append the next token of its block to each chain, and return the drafts that had room for
        it.
        """
        grown = [draft for draft in drafts if self.room(draft) > 0]
        with self.clock.phase("draft"):
            self._forward([draft for draft in grown if draft.request_id not in self._blocks])
            for draft in grown:
                block, row = self._distribution(draft)
                draft.tree.add(self._token(draft, block, row), draft.tree.last, block, row)
        return grown

    def commit(
        self,
        draft: Draft,
        path: Sequence[int],
        root: int | None = None,
        states: Tensor | None = None,
    ) -> None:
        """Keep the target's newest hidden state, which the next block is guessed from."""
        assert states is not None
        if draft.request_id not in self._slots:
            self._slots[draft.request_id] = self._runner.acquire()
        self._executor.keep_state(self._slots[draft.request_id], states[-1])

    def release(self, session: Session) -> None:
        """Free a finished request's slot."""
        slot = self._slots.pop(session.request.id, None)
        if slot is not None:
            self._runner.release(slot)

    def _forward(self, drafts: Sequence[Draft]) -> None:
        """Compute the blocks of several requests together."""
        if not drafts:
            return
        slots = [self._slots[draft.request_id] for draft in drafts]
        rows = [
            Append(slot, [draft.tree.tokens[0]], keep=self._size)
            for slot, draft in zip(slots, drafts, strict=True)
        ]
        forward = self._runner.forward(rows)
        refuse_nan(forward)
        for row, (slot, draft) in enumerate(zip(slots, drafts, strict=True)):
            self._runner.commit(slot, ())
            own = type(forward)([forward[row]])
            self._blocks[draft.request_id] = DraftForward(own, self._sampler, self._sampled)
        self._forwards.append(
            Forwarded(NAME, "draft", {draft.request_id: (self._size, 0) for draft in drafts})
        )

    def _distribution(self, draft: Draft) -> tuple[DraftForward, int]:
        """Return where the next token comes from: its row of the block, masked by what the
        request's grammar allows after the tokens before it.
        """
        block, row = self._blocks[draft.request_id], draft.tree.last
        (allowed,) = draft.allowed_after([row])
        if allowed is None:
            return block, row
        own = masked(Forward([block.logits[row : row + 1]]), [[allowed]])
        return DraftForward(own, self._sampler, self._sampled), 0

    def _token(self, draft: Draft, block: DraftForward, row: int) -> int:
        if not self._sampled:
            return block.best_tokens()[row]
        return int(
            draw(block.probabilities[row : row + 1], [draft.session.random.uniform("draft")])[0]
        )
