"""The training loop. Its state is saved after epochs, so that a run that was stopped can continue."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..._util.files import exists, writing
from ...errors import Error
from .checkpoint import read_state, undamaged, write_state
from .measures import measure
from .recipe import Recipe
from .record import differing
from .samples import Samples

STATE = "state.safetensors"


@dataclass(frozen=True)
class Epoch:
    """The losses and measures of an epoch."""

    epoch: int
    loss: float
    """The mean over training batches, with dropout."""
    validation: Mapping[str, float]
    """Loss, accuracy and the metric; empty where no split is held out."""

    def row(self) -> dict[str, Any]:
        """Return the epoch as it is written in the result."""
        measured = {f"validation_{name}": value for name, value in self.validation.items()}
        return {"epoch": self.epoch, "loss": self.loss, **measured}


@dataclass
class Trainer:
    """A model in training."""

    model: nn.Module
    recipe: Recipe
    train: Samples
    validation: Samples | None
    seed: int
    settings: Mapping[str, Any]
    """What makes two trainings the same: a folder with a state of other settings is refused."""
    metric: str = "accuracy"
    """What the best epoch is found by: "accuracy", or "roc_auc" for two classes."""
    saved_every: float = 0.0
    """Seconds between two states on disk; the state is always saved after the last epoch."""
    history: list[Epoch] = field(default_factory=list)

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
        total = self._steps * self.recipe.epochs
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, lambda step: self.recipe.share(step, total))
        self._kept = self._weights()
        self._shuffle = torch.Generator().manual_seed(self.seed)
        self._average = [p.detach().clone() for p in self._trained] if self.recipe.average else []
        self._averaged = 0
        self._saved = time.monotonic()

    def run(self, folder: Path, progress: Callable[[int, int], None] | None = None) -> Epoch:
        """Train to the end, load the weights of the epoch that is kept, and return that epoch."""
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices), _fast_products(), self.train.checked():
            torch.default_generator.manual_seed(self.seed)  # not torch.manual_seed, which is every device's
            if self._device.type == "cuda":
                with torch.cuda.device(self._device):
                    torch.cuda.manual_seed(self.seed)
            self._resume(folder / STATE)
            while not self._is_done():
                self._epoch(progress)
                if self._is_done() or time.monotonic() - self._saved >= self.saved_every:
                    self._save(folder / STATE)
        self.model.load_state_dict(self._kept, strict=False)
        self.model.eval()
        return self.kept_epoch()

    def kept_epoch(self) -> Epoch:
        """Return the epoch whose weights are kept, of those so far."""
        best = self.best_epoch()
        return self.history[-1] if self.recipe.keep == "last" or best is None else best

    def best_epoch(self) -> Epoch | None:
        """Return the best epoch so far by the metric, then by the lowest loss; None without a validation split."""
        if self.validation is None:
            return None
        return min(self.history, key=lambda one: (-one.validation[self.metric], one.validation["loss"], one.epoch))

    def _is_done(self) -> bool:
        since_best = len(self.history) - self.kept_epoch().epoch if self.history else 0
        return len(self.history) >= self.recipe.epochs or 0 < self.recipe.patience <= since_best

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
            self._update_average()
            total += loss.detach()
            if progress is not None and (step % 20 == 0 or step == self._steps):
                progress(done + step, self._steps * self.recipe.epochs)
        mean = float(total) / self._steps
        with self._averaged_weights():
            validation = {} if self.validation is None else measure(self.model, self.validation, self.metric)
            if not all(map(math.isfinite, (mean, *validation.values()))):
                raise Error(
                    f"The loss is not finite in epoch {len(self.history) + 1}: lower learning_rate="
                    f"{self.recipe.learning_rate:g}, and check the {self.train.suspect}."
                )
            self.history.append(Epoch(len(self.history) + 1, mean, validation))
            if self.kept_epoch() is self.history[-1]:
                self._kept = self._weights()

    def _update_average(self) -> None:
        if not self._average:
            return
        self._averaged += 1
        decay = min(self.recipe.average, self._averaged / (self._averaged + 9))  # forget the first weights soon
        with torch.no_grad():
            torch._foreach_lerp_(self._average, tuple(self._trained), 1 - decay)

    @contextlib.contextmanager
    def _averaged_weights(self) -> Iterator[None]:
        """Give the model the average of the weights for a while, if there is one."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for parameter, mean in zip(self._trained, self._average, strict=bool(self._average)):
            parameter.data, mean.data = mean.data, parameter.data

    def _weights(self) -> dict[str, torch.Tensor]:
        """Return a copy of the weights that are trained."""
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
            "average": self._average,
            "made": self._averaged,
        }
        write_state(path, state)
        self._saved = time.monotonic()

    def _resume(self, path: Path) -> None:
        if not exists(path):
            return
        state = read_state(path, self._device)
        with undamaged(path):
            if changed := differing(self.settings, state["settings"]):
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
            self._average, self._averaged = list(state.get("average", ())), int(state.get("made", 0))


@contextlib.contextmanager
def _fast_products() -> Iterator[None]:
    """Let GPUs multiply with TF32 in training: rounding is far smaller than the noise of the batches."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
