"""What is explained of a graph model's output: one number, the sum of its scores for the targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...errors import Error

_PROBABLE = ("softmax", "log_softmax", "sigmoid")


def explained_number(output: Any, target: Tensor, index: Any, mode: str) -> Tensor:
    """Return the sum of the explained scores; `index` picks outputs, and their targets, as PyTorch Geometric has it."""
    if not isinstance(output, Tensor) or output.dim() not in (1, 2):
        what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise Error(f"The model returned {what}: it must return scores, outputs x classes, or one for each output.")
    picked = slice(None) if index is None else index
    scores = output[picked].reshape(-1, *output.shape[1:])
    if mode == "multiclass_classification":
        if scores.dim() != 2:
            raise Error(f"The model returned {tuple(output.shape)}: a multiclass model returns outputs x classes.")
        classes = _classes(target, len(output), scores.shape[1])[picked].reshape(-1, 1)
        return scores.gather(1, classes.to(scores.device)).sum().reshape(1)
    if scores.dim() == 2 and scores.shape[1] != 1:
        raise Error(
            f"The model returned {tuple(output.shape)}, {scores.shape[1]} numbers for each output, where mode={mode!r} "
            "has one: explain a model that returns the one that is meant."
        )
    if mode == "binary_classification":
        sign = 2 * _classes(target, len(output), 2)[picked].reshape(-1) - 1
        return (scores.reshape(-1) * sign.to(scores)).sum().reshape(1)
    return scores.sum().reshape(1)


def _classes(target: Tensor, outputs: int, count: int) -> Tensor:
    """Return the class of each output, checked."""
    classes = target.reshape(-1)
    if classes.is_floating_point():
        raise Error(f"target is {classes.dtype}: it holds classes, in torch.long.")
    if len(classes) != outputs:
        raise Error(f"target has {len(classes)} entries for {outputs} output(s): give the class of each.")
    if not 0 <= int(classes.min()) <= int(classes.max()) < count:
        raise Error(f"target has the classes {int(classes.min())} to {int(classes.max())}: there are 0 to {count - 1}.")
    return classes


def raw_scores(run: Callable[[], Any], return_type: str) -> Tensor:
    """Return the scores that a model made probabilities of in its last step."""
    with _Watch() as watch:
        output = run()
    if isinstance(output, Tensor) and watch.last is not None:
        scores, made = watch.last
        # The same numbers, perhaps in another shape.
        if output.data_ptr() == made.data_ptr() and output.numel() == made.numel():
            return scores.reshape(output.shape)
    raise Error(
        f"return_type={return_type!r}, but what the model returns does not come straight out of a "
        f"{' or '.join(_PROBABLE)}: with return_type='raw' the returned numbers themselves are explained."
    )


class _Watch(TorchFunctionMode):
    """What went into the last call that makes probabilities, and what came out."""

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
