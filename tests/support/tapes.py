"""Stand-ins for CUDA graphs, so that models on a CPU are recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from conserva.replay import recorder as recording
from conserva.replay.recorder import Compute, Recorder

GPU = torch.device("cpu")
"""What stands for a GPU."""


class Pool:
    """Stands in for the memory of graphs."""

    most_bytes = 1e9
    released = 0

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def random_state(self) -> Tensor:
        return torch.get_rng_state()

    @staticmethod
    def release() -> None:
        Pool.released += 1


class Tape:
    """Stands in for a CUDA graph: it runs the computation on copies of its own."""

    bytes = 1000
    made = 0
    replays = 0

    def __init__(self, compute: Compute, inputs: Mapping[str, Tensor], pool: Any) -> None:
        Tape.made += 1
        self.compute, self.inputs = compute, {name: x.clone() for name, x in inputs.items()}
        compute(self.inputs)

    def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        Tape.replays += 1
        for name, x in self.inputs.items():
            x.copy_(inputs[name])
        return self.compute(self.inputs)


class Stuck(Tape):
    """A recording that kept the numbers it was made of."""

    def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return self.compute(self.inputs)


def rounded(error: float) -> type[Tape]:
    """Return a tape whose replays are off."""

    class Rounded(Tape):
        def replay(self, inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
            first, *rest = super().replay(inputs)
            return [first * (1 + error), *rest]

    return Rounded


class Recorders:
    """Every recorder that was made, and for each batch in order whether it was a replay."""

    def __init__(self) -> None:
        self.made: list[Recorder] = []
        self.ran: list[bool] = []

    @property
    def last(self) -> Recorder:
        return self.made[-1]


def record_by(tape: Any, patch: pytest.MonkeyPatch) -> Recorders:
    """Let models on a CPU be recorded, by tapes."""
    Tape.made = Tape.replays = Pool.released = 0
    recorders = Recorders()

    class Spy(Recorder):
        def __init__(self, device: torch.device, weights: Sequence[Tensor]) -> None:
            super().__init__(device, weights, tape, Pool)
            recorders.made.append(self)

        def run(self, *given: Any) -> Any:
            found = super().run(*given)
            recorders.ran.append(found.is_replay)
            return found

    patch.setattr(recording, "recordable_device", lambda model: GPU)
    patch.setattr(recording, "Recorder", Spy)
    return recorders
