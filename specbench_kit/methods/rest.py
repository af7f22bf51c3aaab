"""The method `rest`: trees retrieved from a corpus."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specbench_kit.decoding.drafting.base import Drafting
from specbench_kit.methods.base import Capability, Environment, Method, Policy, methods, require

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Drafter


@methods.register("rest")
@dataclass(frozen=True)
class Rest(Method):
    """Draft the tree of the `nodes` most frequent continuations of the newest tokens in a corpus of
    other texts.

    Matches of 2 to `span` tokens count; the longest decides. `corpus` is the requests.jsonl of a
    run of the same target, whose answers are the corpus. It never changes, so that results do not
    depend on the order of requests.
    """

    corpus: str = ""
    nodes: int = 64
    span: int = 16
    drafter: str = field(default="retrieval", init=False)
    source = "REST, He et al. 2023, arXiv 2311.08252"
    reported_result = (
        "1.6 to 2.4 times autoregressive decoding (code and chat, corpora of gigabytes)"
    )
    group = "draft-free"
    needs = "a corpus: the requests.jsonl of a run"
    required_capability = Capability.TREES
    draft_limit = "nodes"

    def __post_init__(self) -> None:
        self.require_at_least(1, "nodes")
        self.require_at_least(2, "span")

    @property
    def drafting(self) -> Drafting:
        from specbench_kit.decoding.drafting.retrieval import RetrievalDrafting

        return RetrievalDrafting(self.corpus, self.span, self.nodes)

    def prepare(self, environment: Environment) -> Method:
        require(
            bool(self.corpus),
            "rest: there is no corpus: give corpus=FILE, the requests.jsonl of a run",
        )
        return self

    def policy(self) -> Policy:
        return _RetrievedTree(self.nodes)


@dataclass
class _RetrievedTree(Policy):
    nodes: int

    def draft(self, drafter: "Drafter") -> None:
        for _ in range(self.nodes):
            if not drafter.extend(drafter.drafts):
                return
