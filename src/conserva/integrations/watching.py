"""Explanations of the same examples while a model is trained: what the callbacks of trainers have in common."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import nn

from ..attribution import MethodLike, find
from ..engine.randomness import GeneratorStates
from ..engine.rules import DEFAULT
from ..engine.targets import plain
from ..errors import Error
from ..explaining.explain import explain
from ..results.correlation import rank_correlations
from ..results.explanation import Explanation
from ..results.explanations import Explanations
from ..results.table import data_frame
from ..tasks.loading import load
from ..tasks.task import Task
from ..tasks.user_inputs import inputs_of
from .tracking import Tracked, tracked

_OWN_FORWARD = "_original_forward"
"""Where accelerate keeps the `forward` of a model that it casts."""

_SHARDED = ("device_mesh", "_is_flat_param", "ds_id")
"""The attributes of parameters that FSDP and tensor parallelism, the first version of FSDP, and DeepSpeed split."""


@dataclass(frozen=True)
class Snapshot:
    """The explanations of all examples at one step of a training."""

    step: int
    """The number of steps that the trainer had made."""
    epoch: float
    """The epoch, as the trainer counts them."""
    explanations: tuple[Explanation | None, ...]
    """One for each example; None for one that could not be explained."""
    correlations: tuple[float | None, ...]
    """For each example the rank correlation of its scores with those of the snapshot before; None without one."""
    errors: Mapping[int, str]
    """The index of each example that could not be explained, and the reason."""

    @property
    def explained(self) -> Explanations:
        """The explanations, without examples that could not be explained."""
        return Explanations(tuple(one for one in self.explanations if one is not None))

    @cached_property
    def tracked(self) -> Tracked:
        """What trackers log: page, figure and table of the explanations, and the numbers of each example."""
        return replace(tracked(self.explained), metrics=self.metrics())

    def metrics(self) -> dict[str, float]:
        """Return the numbers of each example, as "0/output", "0/probability", "0/gap_share", "0/rank_correlation"."""
        found: dict[str, float] = {}
        for i, row in enumerate(self.rows()):
            numbers = {name: row[name] for name in ("output", "probability", "gap_share", "rank_correlation")}
            found |= {f"{i}/{name}": float(value) for name, value in numbers.items() if value is not None}
        return found

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the row of each example in the table of all snapshots."""
        for i, (one, correlation) in enumerate(zip(self.explanations, self.correlations, strict=True)):
            ledger = None if one is None else one.ledger
            yield {
                "step": self.step,
                "epoch": self.epoch,
                "example": i,
                "target": None if one is None else one.target,
                "output": None if one is None else one.output,
                "probability": None if one is None else one.probability,
                "gap_share": None if ledger is None else ledger.gap_share,
                "rank_correlation": correlation,
                "tokens": None if one is None else list(one.features),
                "scores": None if one is None else list(one.scores),
                "error": self.errors.get(i),
            }


class Watching:
    """The base class of the callbacks: explains the same examples before a training and at each evaluation."""

    def __init__(
        self,
        model: nn.Module | Task,
        inputs: Any,
        target: Any,
        *,
        tokenizer: Any = None,
        method: MethodLike = DEFAULT,
        name: str = "relevance",
    ) -> None:
        super().__init__()
        self.task = _task_of(model, tokenizer)
        self.inputs, _ = inputs_of(self.task, inputs)
        if not self.inputs:
            raise Error("inputs is empty: give at least one example.")
        self.targets = _targets(target, len(self.inputs))
        find(method)  # raises an error for one that does not exist
        self.method = method
        self.name = name
        self.history: list[Snapshot] = []
        """The explanations before the training, and at each evaluation."""

    def explanations(self, example: int) -> Explanations:
        """Return the explanations of one example in all snapshots; their `model` says at which step."""
        if not 0 <= example < len(self.inputs):
            raise Error(f"example={example!r} is not the index of an example: give 0 to {len(self.inputs) - 1}.")
        return Explanations(tuple(one for each in self.history if (one := each.explanations[example]) is not None))

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each snapshot and example."""
        rows = [row for snapshot in self.history for row in snapshot.rows()]
        columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
        return data_frame(columns, f"{type(self).__name__}.to_pandas()")

    def _begin(self, trained: nn.Module, step: int, epoch: float) -> Snapshot:
        """Explain the examples before the training. Raise an `Error` if one cannot be explained."""
        network = self.task.network
        if all(module is not network for module in trained.modules()):
            raise Error(
                f"The explained model, a {type(network).__name__}, is not a part of the {type(trained).__name__} that "
                "is trained: give the callback the model that the trainer trains."
            )
        _refuse_sharded(network)
        self.history = []
        return self._explained(step, epoch)

    def _next(self, step: int, epoch: float) -> Snapshot | None:
        """Explain the examples during the training, once a step. One that cannot be explained does not end it."""
        if self.history[-1].step == step:
            return None
        snapshot = self._explained(step, epoch)
        for first, reason in list(snapshot.errors.items())[:1]:
            failed = f"{len(snapshot.errors)} of {len(self.inputs)} example(s)"
            warnings.warn(
                f"{self.name}: {failed} cannot be explained at step {step}; inputs[{first}]: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
        return snapshot

    def _explained(self, step: int, epoch: float) -> Snapshot:
        """Explain the examples, add them to the history, and leave modes and random numbers as they are."""
        found: list[Explanation | None] = []
        errors: dict[int, str] = {}
        with _evaluating(self.task.model), GeneratorStates().restored():
            for i, (given, target) in enumerate(zip(self.inputs, self.targets, strict=True)):
                try:
                    one = explain(self.task, given, target, method=self.method)
                except Exception as error:
                    if not self.history:
                        raise Error(f"inputs[{i}] cannot be explained: {error}") from error
                    errors[i] = str(error) or type(error).__name__
                    found.append(None)
                else:
                    known = {**one.provenance, "step": step, "epoch": epoch}
                    found.append(replace(one, model=f"{one.model}, step {step}", provenance=known))
        correlations = tuple(self._correlation(i, one) for i, one in enumerate(found))
        self.history.append(Snapshot(step, epoch, tuple(found), correlations, errors))
        return self.history[-1]

    def _correlation(self, example: int, one: Explanation | None) -> float | None:
        before = self.explanations(example)
        return rank_correlations([before[-1], one])[0][1] if before and one is not None else None


def _task_of(model: Any, tokenizer: Any) -> Task:
    if isinstance(model, Task):
        if tokenizer is not None:
            raise Error("tokenizer is for a model, and a task has its own: leave it out.")
        return model
    with ExitStack() as stack:
        if isinstance(model, nn.Module):
            stack.enter_context(_evaluating(model))
        return load(model, tokenizer=tokenizer)


def _targets(given: Any, many: int) -> Sequence[Any]:
    target = plain(given)
    if target is None:
        raise Error(
            "target=None, the predicted class, may change while a model is trained: give a label, or a list of labels."
        )
    if not isinstance(target, list):
        return [target] * many
    if len(target) != many or None in target:
        raise Error(f"target={target!r:.80} has {len(target)} entries for {many} example(s): give one label for each.")
    return target


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put all modules of a model into evaluation mode and full precision inside the block, and back afterwards.

    `train` and `eval` are not called: modules may override them, such as to merge weights. For mixed precision,
    accelerate replaces the attribute `forward` of a model by one with autocast, and keeps the model's own beside it.
    """
    modes = [(module, module.training) for module in model.modules()]
    casting = [(module, module.forward) for module in model.modules() if _OWN_FORWARD in vars(module)]
    try:
        for module, _ in modes:
            module.training = False
        for module, _ in casting:
            module.forward = vars(module)[_OWN_FORWARD]
        yield
    finally:
        for module, training in modes:
            module.training = training
        for module, forward in casting:
            module.forward = forward


def _refuse_sharded(network: nn.Module) -> None:
    """Raise an `Error` if a process has only a part of a model's parameters: to explain it takes all processes."""
    for name, parameter in network.named_parameters():
        if not parameter.numel() or any(hasattr(parameter, mark) for mark in _SHARDED):
            raise Error(
                f"Parameter {name!r} of the {type(network).__name__} is split among processes, as by FSDP, tensor "
                "parallelism or DeepSpeed ZeRO-3, and the callback explains in the first process alone. Explain "
                "checkpoints after the training."
            )
