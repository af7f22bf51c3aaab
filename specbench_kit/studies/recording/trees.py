"""The methods whose trees a trace is recorded for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specbench_kit.core.errors import SkitError, require
from specbench_kit.decoding.drafting.base import Capability, parse_drafter
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.placing import environment
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method
from specbench_kit.predictors.library import PairHashes
from specbench_kit.traces.trace import TraceHeader


@dataclass(frozen=True)
class TreeMethods:
    """Tree methods by their specs; those that go by latencies draft as on each of the deployments."""

    specs: tuple[str, ...]
    deployments: Sequence[Deployment | None]

    def __post_init__(self) -> None:
        require(bool(self.deployments) and None not in self.deployments, "--trees-for names deployments, not local")
        for spec in self.specs:
            method = parse_method(spec)
            drafts_trees = method.required_capability == Capability.TREES and method.pipeline is None
            is_recordable = drafts_trees and not method.own_distributions
            require(is_recordable, f"--trees {spec}: {method.display_name} drafts no trees of the draft model's tokens")
            same = method.drafting == parse_drafter("model")
            require(
                same, f"--trees {spec}: the trees of drafter '{method.drafter}' cannot be recorded, only the model's"
            )

    def prepared(self, header: TraceHeader) -> Sequence[Method]:
        """Return the methods for the pair of a trace, each as often as it differs between the deployments."""
        models = header.run["models"]
        pair = PairHashes(models["target"]["hash"], models["draft"]["hash"])
        # No round is left to a server, since any round may be drafted on another deployment.
        places = [replace(environment(pair, deployment), server_decodes=False) for deployment in self.deployments]
        methods = list[Method]()
        for spec in self.specs:
            for place in places:
                try:
                    method = parse_method(spec).prepare(place)
                except SkitError as error:
                    raise SkitError(f"--trees {spec}: {error}") from error
                if method not in methods:
                    methods.append(method)
        return methods
