"""The clock of a drafter inside an engine, which also counts the steps that the engine does between two calls."""

import torch

from specbench_kit.decoding.clock import MeasuringClock


class EngineClock(MeasuringClock):
    """This machine's time, which always passes: between two calls of the drafter the engine works."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._forever = self.running()
        self._forever.__enter__()

    def charge_step(self, seconds: float, *, typical: bool) -> None:
        """Charge a step of the engine as a verification; it is not `typical` if a prompt was part of it."""
        self._phases["verify"] += seconds
        if typical:
            self._recent["verify"].append(seconds)
