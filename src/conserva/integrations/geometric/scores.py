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


def raw_scores(run: Callable[[], Any], return_type: str) -> Tensor:
    """Return the logits that a model converts to probabilities in its last call."""
    with _Watch() as watch:
        output = run()
    if isinstance(output, Tensor) and watch.last is not None:
        scores, made = watch.last
        # The output is the same memory, possibly in another shape.
        if output.data_ptr() == made.data_ptr() and output.numel() == made.numel():
            return scores.reshape(output.shape)
    raise Error(
        f"return_type={return_type!r}, but the model's output is not the direct result of a "
        f"{' or '.join(_PROBABLE)}: use return_type='raw' to explain the returned numbers."
    )


class _Watch(TorchFunctionMode):
    """Records the input and output of the last softmax, log_softmax or sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.last: tuple[Tensor, Tensor] | None = None

    def __enter__(self) -> _Watch:
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if getattr(func, "__name__", "") in _PROBABLE:
            self.last = (args[0] if args else kwargs["input"], out)
        return out
