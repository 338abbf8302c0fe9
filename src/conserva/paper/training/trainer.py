"""Epochs of training, each written down, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import contextlib
import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import nn
from torch.nn import functional as F

from ..._util.files import exists, writing
from ...errors import Error
from .batches import Samples
from .checkpoint import read_state, undamaged, write_state
from .measures import measures, predicted
from .recipe import Recipe

STATE = "state.safetensors"
MEASURED_TOKENS = 32768
"""Tokens in a batch when accuracy is measured."""


class Steps(Protocol):
    """What every recipe says."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def epochs(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def clip(self) -> float: ...


R = TypeVar("R", bound=Steps)


@dataclass(frozen=True)
class Epoch:
    """What an epoch came to."""

    epoch: int
    loss: float
    """The mean over training batches, dropout on."""
    validation: Mapping[str, float]
    """Loss, accuracy and what else is measured; nothing where no split is held out."""

    def row(self) -> dict[str, Any]:
        """Return it as it stands in the result."""
        measured = {f"validation_{name}": value for name, value in self.validation.items()}
        return {"epoch": self.epoch, "loss": self.loss, **measured}


@dataclass
class Trainer(ABC, Generic[R]):
    """A model in training: all that is needed to go on is in its state."""

    model: nn.Module
    recipe: R
    train: Samples
    validation: Samples | None
    seed: int
    settings: Mapping[str, Any]
    """What makes two trainings the same: a folder with another's state is refused."""
    history: list[Epoch] = field(default_factory=list)

    suspect: ClassVar[str]
    """What may be wrong, beside the learning rate, if the loss is not finite."""

    def __post_init__(self) -> None:
        self._device = next(self.model.parameters()).device
        self._trained = [p for p in self.model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._trained,
            lr=self.recipe.learning_rate,
            weight_decay=self.recipe.weight_decay,
            fused=self._device.type == "cuda",
        )
        self._steps = math.ceil(len(self.train) / self.recipe.batch_size)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, self._share)
        self._kept = self._weights()
        self._shuffle = torch.Generator().manual_seed(self.seed)

    def run(self, folder: Path, progress: Callable[[int, int], None] | None = None) -> Epoch:
        """Train to the end, and leave the model with the weights of the epoch that is kept, which is returned."""
        with torch.random.fork_rng([self._device] if self._device.type == "cuda" else []), _fast_products():
            torch.default_generator.manual_seed(self.seed)  # not torch.manual_seed, which is every device's
            if self._device.type == "cuda":
                with torch.cuda.device(self._device):
                    torch.cuda.manual_seed(self.seed)
            self._resume(folder / STATE)
            while not self._is_done():
                self._epoch(progress)
                if self._is_due():
                    self._save(folder / STATE)
        self.model.load_state_dict(self._kept, strict=False)
        self.model.eval()
        return self.kept_epoch()

    # What kinds of models differ in.

    @abstractmethod
    def kept_epoch(self) -> Epoch:
        """Return the epoch whose weights are kept, of those so far."""

    @abstractmethod
    def _measured(self) -> dict[str, float]:
        """Return how good the model is on the validation split."""

    def _share(self, step: int) -> float:
        """Return the share of the learning rate after so many steps: it falls to 0 in a line."""
        return max(0.0, 1 - step / (self._steps * self.recipe.epochs))

    def _is_done(self) -> bool:
        return len(self.history) >= self.recipe.epochs

    def _is_due(self) -> bool:
        """Return whether the state is to be written after this epoch."""
        return True

    def _stepped(self) -> None:
        """Hear of a step that was made."""

    def _shown(self) -> AbstractContextManager[None]:
        """Let the model have the weights that are measured and kept, if they are others than those in training."""
        return contextlib.nullcontext()

    def _more_state(self) -> dict[str, Any]:
        """Return what else is needed to go on."""
        return {}

    def _take_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `_more_state` returned."""

    # What they share.

    def _epoch(self, progress: Callable[[int, int], None] | None) -> None:
        done = len(self.history) * self._steps
        total = torch.zeros((), device=self._device)
        self.model.train()
        for step, (inputs, labels) in enumerate(self.train.shuffled(self.recipe.batch_size, self._shuffle), 1):
            loss = F.cross_entropy(self.model(**inputs).logits, labels)
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self._trained, self.recipe.clip)
            self._optimizer.step()
            self._schedule.step()
            self._stepped()
            total += loss.detach()
            if progress is not None and (step % 20 == 0 or step == self._steps):
                progress(done + step, self._steps * self.recipe.epochs)
        mean = float(total) / self._steps
        with self._shown():
            validation = {} if self.validation is None else self._measured()
            if not all(map(math.isfinite, (mean, *validation.values()))):
                raise Error(
                    f"The loss is not finite in epoch {len(self.history) + 1}: lower learning_rate="
                    f"{self.recipe.learning_rate:g}, and check the {self.suspect}."
                )
            self.history.append(Epoch(len(self.history) + 1, mean, validation))
            if self.kept_epoch() is self.history[-1]:
                self._kept = self._weights()

    def _weights(self) -> dict[str, torch.Tensor]:
        """Return a copy of what is trained; frozen embeddings stay as they are."""
        trained = {name for name, p in self.model.named_parameters() if p.requires_grad}
        return {name: copy.deepcopy(value) for name, value in self.model.state_dict().items() if name in trained}

    def _save(self, path: Path) -> None:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "settings": dict(self.settings),
            "model": self._weights(),
            "kept": self._kept,
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "shuffle": self._shuffle.get_state(),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None,
            "history": [vars(one) for one in self.history],
            **self._more_state(),
        }
        write_state(path, state)

    def _resume(self, path: Path) -> None:
        if not exists(path):
            return
        state = read_state(path, self._device)
        with undamaged(path):
            settings = state["settings"]
            changed = [key for key, value in self.settings.items() if settings.get(key) != value]
            if changed:
                raise Error(
                    f"{path} belongs to another training: it differs in {', '.join(changed)}. Choose another folder, "
                    "or delete the file."
                )
            self.model.load_state_dict(state["model"], strict=False)
            self._kept = state["kept"]
            self._optimizer.load_state_dict(state["optimizer"])
            self._schedule.load_state_dict(state["schedule"])
            self._shuffle.set_state(state["shuffle"].cpu())
            torch.set_rng_state(state["random"].cpu())
            if state["random_cuda"] is not None and self._device.type == "cuda":
                torch.cuda.set_rng_state(state["random_cuda"].cpu(), self._device)
            self.history = [Epoch(**one) for one in state["history"]]
            self._take_state(state)


@contextlib.contextmanager
def _fast_products() -> Iterator[None]:
    """Let GPUs multiply with TF32 while training: the batches' noise is far larger than what it rounds off."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class TextTrainer(Trainer[Recipe]):
    """A classifier of texts: the first epoch with the highest accuracy is kept, among equals the one of lowest loss."""

    suspect = "embeddings"

    def kept_epoch(self) -> Epoch:
        return min(self.history, key=lambda one: (-one.validation["accuracy"], one.validation["loss"], one.epoch))

    def _is_done(self) -> bool:
        since_best = len(self.history) - self.kept_epoch().epoch if self.history else 0
        return super()._is_done() or since_best >= self.recipe.patience

    def _measured(self) -> dict[str, float]:
        assert self.validation is not None
        accuracy, loss = measure(self.model, self.validation)
        return {"loss": loss, "accuracy": accuracy}


def measure(model: nn.Module, data: Samples) -> tuple[float, float]:
    """Return accuracy and mean loss, dropout off."""
    found = measures(*predicted(model, data, MEASURED_TOKENS))
    return found["accuracy"], found["loss"]
