"""Targets: the explained number of each sample, computed from the model's output."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .._util.nearest import did_you_mean
from ..errors import Error
from .transfer import on_device

Target: TypeAlias = int | str | tuple[int, ...] | Callable[[Any], Tensor] | None
"""A class index, a label, a contrast "a - b", an index tuple, a function of the output; None for the highest score."""

OutputIndex: TypeAlias = tuple[int, ...]
"""A non-negative index into a sample's output."""


def plain(target: Any) -> Any:
    """Return a target with numbers, arrays and Series of numpy, torch and pandas converted to Python's."""
    if hasattr(target, "tolist"):
        return target.tolist()
    if isinstance(target, (list, tuple)):
        return type(target)(map(plain, target))
    return target


def scores_of(output: Any) -> Tensor:
    """Return the tensor of scores in a model's output: logits, the last hidden state, or the first float tensor."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "last_hidden_state"):
        if isinstance(scores := getattr(output, name, None), Tensor):
            return scores
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    for part in parts:
        if isinstance(part, Tensor) and part.is_floating_point():
            return part
    raise Error(
        f"The model returned {type(output).__name__}, which has no tensor of scores: pass a function as "
        "target=lambda output: ... that returns one number for each sample."
    )


def classes_of(output: Any, samples: int) -> Tensor | None:
    """Return a classifier's logits, samples x classes; None for other models."""
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    is_classifier = isinstance(logits, Tensor) and logits.dim() == 2 and logits.shape[0] == samples
    return logits.detach() if is_classifier and logits is not None else None


def labels_of(model: nn.Module) -> dict[str, int]:
    """Return the labels of a Hugging Face classifier with their class indices; {} for other models."""
    labels = getattr(getattr(model, "config", None), "id2label", None) or {}
    return {str(label): int(index) for index, label in labels.items()}


def read_target(
    output: Any, target: Target | Sequence[Target] | Tensor, labels: Mapping[str, int], samples: int
) -> Tensor:
    """Return the explained number of each sample.

    Parameters
    ----------
    output
        The model's output.
    target
        One target for all samples, or a list with one for each.
    labels
        Label -> class index.
    samples
        The number of samples.
    """
    if callable(target):
        return _from_function(target(output), target, samples)
    scores = scores_of(output)
    if scores.dim() == 0 or scores.shape[0] != samples:
        raise Error(
            f"The output has shape {tuple(scores.shape)}, whose first dimension is not the batch of {samples} "
            "sample(s): pass a function as target=lambda output: ... that returns one number for each sample."
        )
    if isinstance(target, Tensor):
        target = target.tolist()
    if isinstance(target, list) and len(target) != samples:
        raise Error(f"target has {len(target)} entries for {samples} sample(s): give one for each, or one for all.")
    wanted: Sequence[Any] = target if isinstance(target, list) else [target]
    each = [_output_indices(scores.shape[1:], single, labels) for single in wanted]
    if len(set(map(len, each))) == 1:
        return _numbers(scores, each)
    return torch.cat([_numbers(scores[i : i + 1], [indices]) for i, indices in enumerate(each)])


def settled(target: Any, output: Any, samples: int) -> Any:
    """Return a target that does not depend on the inputs: None is replaced by the class with the highest score."""
    if callable(target):
        return target
    scores = scores_of(output)
    each = [of_sample(target, i) for i in range(samples)]
    return [int(scores[i].argmax()) if single is None and scores[i].dim() else single for i, single in enumerate(each)]


def of_sample(target: Any, i: int) -> Any:
    """Return the target of one sample."""
    if isinstance(target, Tensor):
        target = target.tolist()
    return target[i] if isinstance(target, list) and i < len(target) else target


def _from_function(value: Any, target: Any, samples: int) -> Tensor:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise Error(f"target={target!r} returned {type(value).__name__}: it must return a floating-point tensor.")
    numbers: Tensor = value.reshape(1) if value.dim() == 0 and samples == 1 else value
    if numbers.shape != (samples,):
        raise Error(
            f"target={target!r} returned shape {tuple(numbers.shape)}: it must return shape ({samples},), one number "
            "for each sample."
        )
    return numbers


def _output_indices(shape: Sequence[int], target: Target, labels: Mapping[str, int]) -> tuple[OutputIndex, ...]:
    """Return the indices of a target in a sample's output: two for a contrast, none for the highest score."""
    if target is None and len(shape) <= 1:
        return ()
    if isinstance(target, str) and target not in labels and " - " in target:
        a, b = target.split(" - ", 1)
        return (_output_index(shape, class_index(a, labels)), _output_index(shape, class_index(b, labels)))
    return (_output_index(shape, class_index(target, labels) if isinstance(target, str) else target),)


def _output_index(shape: Sequence[int], target: Target) -> OutputIndex:
    if isinstance(target, bool) or not isinstance(target, (int, tuple)):
        if target is None:
            raise Error(
                f"target=None: a sample's output has shape {tuple(shape)}; pass the index of the entry to explain, as "
                "a tuple."
            )
        raise Error(f"target={target!r} is not a class index, label, contrast 'a - b', index tuple or function.")
    index = target if isinstance(target, tuple) else (target,)
    if len(index) != len(shape):
        raise Error(f"target={target!r} has {len(index)} index(es), but a sample's output has shape {tuple(shape)}.")
    for i, size in zip(index, shape, strict=True):
        if not -size <= i < size:
            raise Error(f"target={target!r} is out of range: a sample's output has shape {tuple(shape)}.")
    return tuple(i % size for i, size in zip(index, shape, strict=True))


def _numbers(scores: Tensor, each: Sequence[tuple[OutputIndex, ...]]) -> Tensor:
    """Return the explained number of each sample, given the output indices of each sample or those of all."""
    if not each[0]:
        return scores.amax(1) if scores.dim() > 1 else scores
    first, *second = (_entries(scores, indices) for indices in zip(*each, strict=True))
    return first - second[0] if second else first


def _entries(scores: Tensor, indices: Sequence[OutputIndex]) -> Tensor:
    """Return one entry of each sample, in one call that does not synchronise with the device."""
    if len(set(indices)) == 1:
        common: tuple[slice | int, ...] = (slice(None), *indices[0])
        return scores[common]
    flat = [sum(i * math.prod(scores.shape[dim + 1 :]) for dim, i in enumerate(index, 1)) for index in indices]
    return scores.flatten(1).gather(1, on_device(flat, scores.device).unsqueeze(1)).squeeze(1)


def class_index(label: str, labels: Mapping[str, int]) -> int:
    """Return the class index of a label, or of a class index given as text; raise for other names."""
    label = label.strip()
    if label in labels:
        return labels[label]
    if label.removeprefix("-").isdecimal():
        return int(label)
    known = ", ".join(map(repr, labels)) if labels else "none; give a class index"
    hint = did_you_mean(label, labels)
    raise Error(f"target label {label!r} is not one of the model's labels: {known}.{hint}")
