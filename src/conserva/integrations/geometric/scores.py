"""The explained outputs of a graph model: its logits for the targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...errors import Error

_PROBABLE = ("softmax", "log_softmax", "sigmoid")


def explained_rows(outputs: int, index: Any) -> list[int]:
    """Return the indices of the explained outputs; `index` selects them as in PyTorch Geometric, None all."""
    rows = torch.arange(outputs)
    try:
        picked = rows if index is None else rows[index.cpu() if isinstance(index, Tensor) else index].reshape(-1)
    except IndexError as error:
        raise Error(f"index={index!r} does not fit {outputs} output(s): {error}.") from None
    if not len(picked):
        raise Error(f"index={index!r} selects none of {outputs} output(s): give at least one.")
    return picked.tolist()


def explained_number(output: Any, target: Tensor, row: int, mode: str) -> Tensor:
    """Return the explained logit of one output."""
    if not isinstance(output, Tensor) or output.dim() not in (1, 2):
        what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise Error(f"The model returned {what}: it must return scores, outputs x classes, or one for each output.")
    if mode == "multiclass_classification":
        if output.dim() != 2:
            raise Error(f"The model returned {tuple(output.shape)}: a multiclass model returns outputs x classes.")
        return output[row, int(_classes(target, len(output), output.shape[1])[row])].reshape(1)
    if output.dim() == 2 and output.shape[1] != 1:
        raise Error(
            f"The model returned {tuple(output.shape)}, {output.shape[1]} numbers for each output, but mode={mode!r} "
            "needs one: give a model that returns one."
        )
    sign = 1 if mode == "regression" else 2 * int(_classes(target, len(output), 2)[row]) - 1
    return output[row].reshape(1) * sign


def _classes(target: Tensor, outputs: int, count: int) -> Tensor:
    """Return the class of each output; raise an `Error` if the targets are not valid."""
    classes = target.reshape(-1)
    if classes.is_floating_point():
        raise Error(f"target is {classes.dtype}: give class indices, as torch.long.")
    if len(classes) != outputs:
        raise Error(f"target has {len(classes)} entries for {outputs} output(s): give the class of each.")
    if not 0 <= int(classes.min()) <= int(classes.max()) < count:
        raise Error(f"target has the classes {int(classes.min())} to {int(classes.max())}: there are 0 to {count - 1}.")
    return classes


def conversions(run: Callable[[], Any], return_type: str) -> int:
    """Return how many times a model calls softmax, log_softmax or sigmoid, the last of which makes its output."""
    with torch.no_grad(), _Watch() as watch:
        output = run()
    if watch.converted(output) is None:
        raise Error(
            f"return_type={return_type!r}, but the model's output is not the direct result of a "
            f"{' or '.join(_PROBABLE)}: use return_type='raw' to explain the returned numbers."
        )
    return watch.calls


def raw_scores(run: Callable[[], Any], calls: int) -> Tensor:
    """Return the logits that a model converts to probabilities in the last of some calls, to which no rule applies."""
    with _Watch(calls) as watch:
        output = run()
    scores = watch.converted(output)
    if scores is None:
        raise Error("The model made other calls than in the first pass: its forward depends on more than its inputs.")
    return scores.reshape(output.shape)


class _Watch(TorchFunctionMode):
    """Records the input and output of the last softmax, log_softmax or sigmoid, and takes call `last` out of the rules.

    It is the conversion of the output: neither attention nor an activation.
    """

    def __init__(self, last: int = 0) -> None:
        super().__init__()
        self.calls, self.last = 0, last
        self.made: tuple[Tensor, Tensor] | None = None

    def converted(self, output: Any) -> Tensor | None:
        """Return what was converted to the output, which is then the same memory, possibly in another shape."""
        if not isinstance(output, Tensor) or self.made is None:
            return None
        scores, made = self.made
        return scores if output.data_ptr() == made.data_ptr() and output.numel() == made.numel() else None

    def __enter__(self) -> _Watch:
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in _PROBABLE:
            return func(*args, **kwargs)
        self.calls += 1
        scores, *others = args or (kwargs.pop("input"),)
        if self.calls == self.last:
            with torch._C.DisableTorchFunction():
                out = func(scores.detach(), *others, **kwargs)
        else:
            out = func(scores, *others, **kwargs)
        self.made = (scores, out)
        return out
