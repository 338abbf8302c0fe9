"""`conserva.replaying`: recording and replaying of explanations inside a block that the user opens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, overload

from torch import Tensor, nn

from ..engine.context import Propagation
from ..engine.memory import AUTO
from ..engine.passes import INPUTS, Relevance
from ..engine.relevance import explained
from ..engine.rules import DEFAULT, RuleSet
from ..engine.targets import Target
from ..errors import Error
from .recordable import is_observed
from .recorder import Recorder, new_recorder
from .replays import replayed


def replaying(model: nn.Module) -> Replaying:
    """Return a context manager for explaining in a loop: inputs of a frequent shape are replayed as a CUDA graph.

    Inside the block the model's structure and settings, and the functions that it calls, must stay the same, as for
    `torch.cuda.make_graphed_callables`: a replay would ignore the change. Weights may change in place; a call after
    they were moved or replaced raises `conserva.Error`. While the model is in training mode, or hooks, torch modes or
    autocast are active, calls run as `conserva.relevance` does. So do all calls that cannot be recorded: on a CPU, on
    several GPUs, in float16, with torch before 2.11; and those whose target is a function.

    The third call with the same shapes, target and rule set records it, with the inputs of the call before. From then
    on the recording is used, if its results are bitwise equal to those of the plain computation on other inputs. Until
    the block ends, recordings use at most a sixteenth of the GPU's memory. Not thread-safe; while a graph is recorded,
    other threads must neither synchronise that GPU nor draw random numbers on it.

    Parameters
    ----------
    model
        Any PyTorch Transformer, in evaluation mode. It is not changed.

    Returns
    -------
    Replaying
        A context manager, whose method `relevance` takes the arguments of `conserva.relevance` without the model.

    Examples
    --------
    >>> task = conserva.load()
    >>> with conserva.replaying(task.model) as fast:
    ...     for text in ["a joy.", "a bore."]:
    ...         scores = fast.relevance(task.tokenizer(text, return_tensors="pt"), 1).scores()
    """
    if not isinstance(model, nn.Module):
        raise Error(f"model={model!r} is not a torch.nn.Module: pass the model itself, such as task.model.")
    return Replaying(model)


class Replaying:
    """The context manager that `conserva.replaying` returns.

    Examples
    --------
    >>> task = conserva.load()
    >>> with conserva.replaying(task.model) as fast:
    ...     scores = fast.relevance(task.tokenizer("a joy.", return_tensors="pt"), 1).scores()
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._is_open = False
        self._recorder: Recorder | None = None
        self._modules: list[nn.Module] = []
        self._addresses: list[int] = []

    def __enter__(self) -> Replaying:
        if self._is_open:
            raise Error("This conserva.replaying(model) block is already open: call conserva.replaying again.")
        self._is_open = True
        self._modules = list(self._model.modules())
        self._addresses = _addresses(self._modules)
        self._recorder = new_recorder(self._model)
        return self

    def __exit__(self, *exception: object) -> None:
        recorder, self._recorder, self._is_open = self._recorder, None, False
        if recorder is not None:
            recorder.drop()

    @overload
    def relevance(
        self,
        inputs: Any,
        target: Target | Sequence[Target] | Tensor = ...,
        *,
        targets: None = ...,
        rules: str | RuleSet | Propagation = ...,
        at: str | Sequence[str] = ...,
        ledger: bool = ...,
        batch_dim: int = ...,
        trusted: Collection[str] = ...,
        checkpoint: str = ...,
    ) -> Relevance: ...

    @overload
    def relevance(
        self,
        inputs: Any,
        *,
        targets: Sequence[Target | Sequence[Target] | Tensor],
        rules: str | RuleSet | Propagation = ...,
        at: str | Sequence[str] = ...,
        ledger: bool = ...,
        batch_dim: int = ...,
        trusted: Collection[str] = ...,
        checkpoint: str = ...,
    ) -> list[Relevance]: ...

    def relevance(
        self,
        inputs: Any,
        target: Target | Sequence[Target] | Tensor = None,
        *,
        targets: Sequence[Target | Sequence[Target] | Tensor] | None = None,
        rules: str | RuleSet | Propagation = DEFAULT,
        at: str | Sequence[str] = INPUTS,
        ledger: bool = True,
        batch_dim: int = 0,
        trusted: Collection[str] = (),
        checkpoint: str = AUTO,
    ) -> Relevance | list[Relevance]:
        """Return `conserva.relevance(model, ...)`; takes the same arguments, except the model."""
        if not self._is_open:
            raise Error(
                "relevance was called outside its `with conserva.replaying(model) as fast:` block: call it inside, or "
                "use conserva.relevance."
            )
        recorder = self._recorder
        if recorder is not None:
            if _addresses(self._modules) != self._addresses:
                raise Error(
                    f"The weights of {type(self._model).__name__} were moved or replaced inside a "
                    "conserva.replaying(model) block: change them in place, or open another block."
                )
            recorder = None if is_observed(self._modules) else recorder
        replay = None if recorder is None else partial(replayed, recorder)
        return explained(
            self._model, inputs, target, targets, rules, at, ledger, batch_dim, trusted, checkpoint, replay
        )


def _addresses(modules: Sequence[nn.Module]) -> list[int]:
    """Return the addresses of a model's parameters and buffers."""
    return [
        _address(x)
        for module in modules
        for tensors in (module._parameters, module._buffers)
        for x in tensors.values()
        if x is not None
    ]


def _address(x: Tensor) -> int:
    try:
        return x.data_ptr()
    except RuntimeError:  # wrapper subclasses have no storage
        return id(x)
