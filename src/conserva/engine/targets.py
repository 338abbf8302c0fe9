"""What is explained: a scalar of the output for each sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import Error
from .transfer import on_device

Target: TypeAlias = int | str | tuple[int, ...] | Callable[[Any], Tensor] | None
"""A class index, a label, a contrast "a - b", an index into a sample's output, a function; None: the highest score."""

Place: TypeAlias = tuple[int, ...]
"""An index into a sample's output, counted from its beginning along every axis."""


def plain(target: Any) -> Any:
    """Return a target in Python's own numbers: those of numpy and torch are as good."""
    if isinstance(target, (Tensor, np.ndarray, np.integer)):
        return target.tolist()
    if isinstance(target, (list, tuple)):
        return type(target)(map(plain, target))
    return target


def scores_of(output: Any) -> Tensor:
    """Return the tensor of scores in what a model returned."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "last_hidden_state"):
        if isinstance(found := getattr(output, name, None), Tensor):
            return found
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    for part in parts:
        if isinstance(part, Tensor) and part.is_floating_point():
            return part
    raise Error(
        f"The model returned {type(output).__name__}, in which there is no tensor of scores: "
        "pass target=lambda output: ... that returns one number for each sample."
    )


def classes_of(output: Any, samples: int) -> Tensor | None:
    """Return a classifier's scores, one for each class and sample, and nothing for other models."""
    found = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    is_classifier = isinstance(found, Tensor) and found.dim() == 2 and found.shape[0] == samples
    return found.detach() if is_classifier and found is not None else None


def labels_of(model: nn.Module) -> dict[str, int]:
    """Return the labels of a Hugging Face classifier, and nothing for other models."""
    labels = getattr(getattr(model, "config", None), "id2label", None) or {}
    return {str(label): int(index) for index, label in labels.items()}


def read_target(
    output: Any, target: Target | Sequence[Target] | Tensor, labels: Mapping[str, int], samples: int
) -> Tensor:
    """Return the explained number of each sample: one target for all, or a list with one for each."""
    if callable(target):
        return _from_function(target(output), target, samples)
    scores = scores_of(output)
    if scores.dim() == 0 or scores.shape[0] != samples:
        raise Error(
            f"The output has shape {tuple(scores.shape)}, whose first axis is not that of the {samples} sample(s): "
            "pass target=lambda output: ... that returns one number for each sample."
        )
    if isinstance(target, Tensor):
        target = target.tolist()
    if isinstance(target, list) and len(target) != samples:
        raise Error(f"target has {len(target)} entries for {samples} sample(s): give one for each, or one for all.")
    wanted: Sequence[Any] = target if isinstance(target, list) else [target]
    each = [_places(scores.shape[1:], one, labels) for one in wanted]
    if len(set(map(len, each))) == 1:
        return _numbers(scores, each)
    return torch.cat([_numbers(scores[i : i + 1], [places]) for i, places in enumerate(each)])


def settled(target: Any, output: Any, samples: int) -> Any:
    """Return a target that stays the same when the inputs change: the highest score becomes the class that has it."""
    if callable(target):
        return target
    scores = scores_of(output)
    each = [of_sample(target, i) for i in range(samples)]
    return [int(scores[i].argmax()) if one is None and scores[i].dim() else one for i, one in enumerate(each)]


def of_sample(target: Any, i: int) -> Any:
    """Return what a target says about one sample."""
    if isinstance(target, Tensor):
        target = target.tolist()
    return target[i] if isinstance(target, list) and i < len(target) else target


def _from_function(value: Any, target: Any, samples: int) -> Tensor:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise Error(f"target={target!r} returned {type(value).__name__}: it must return a tensor of numbers.")
    numbers: Tensor = value.reshape(1) if value.dim() == 0 and samples == 1 else value
    if numbers.shape != (samples,):
        raise Error(f"target={target!r} returned shape {tuple(numbers.shape)}: it must be ({samples},), one a sample.")
    return numbers


def _places(shape: Sequence[int], target: Target, labels: Mapping[str, int]) -> tuple[Place, ...]:
    """Return where in a sample's output a target stands: nowhere for the highest score, twice for a contrast."""
    if target is None and len(shape) <= 1:
        return ()
    if isinstance(target, str) and target not in labels and " - " in target:
        a, b = target.split(" - ", 1)
        return (_place(shape, class_index(a, labels)), _place(shape, class_index(b, labels)))
    return (_place(shape, class_index(target, labels) if isinstance(target, str) else target),)


def _place(shape: Sequence[int], target: Target) -> Place:
    if isinstance(target, bool) or not isinstance(target, (int, tuple)):
        if target is None:
            raise Error(f"The output of a sample has shape {tuple(shape)}: say which entry to explain, as a tuple.")
        raise Error(f"target={target!r} is not a class index, label, contrast 'a - b', index tuple or function.")
    index = target if isinstance(target, tuple) else (target,)
    if len(index) != len(shape):
        raise Error(f"target={target!r} has {len(index)} index(es), but a sample's output has shape {tuple(shape)}.")
    for i, size in zip(index, shape, strict=True):
        if not -size <= i < size:
            raise Error(f"target={target!r} is out of range: a sample's output has shape {tuple(shape)}.")
    return tuple(i % size for i, size in zip(index, shape, strict=True))


def _numbers(scores: Tensor, each: Sequence[tuple[Place, ...]]) -> Tensor:
    """Return the number of each sample, given its places: for each sample, or one for all."""
    if not each[0]:
        return scores.amax(1) if scores.dim() > 1 else scores
    first, *second = (_entries(scores, places) for places in zip(*each, strict=True))
    return first - second[0] if second else first


def _entries(scores: Tensor, places: Sequence[Place]) -> Tensor:
    """Return an entry of each sample, all in one call and without waiting for the device."""
    if len(set(places)) == 1:
        index: tuple[slice | int, ...] = (slice(None), *places[0])
        return scores[index]
    flat = [sum(i * math.prod(scores.shape[axis + 1 :]) for axis, i in enumerate(place, 1)) for place in places]
    return scores.flatten(1).gather(1, on_device(flat, scores.device).unsqueeze(1)).squeeze(1)


def class_index(label: str, labels: Mapping[str, int]) -> int:
    """Return the index of a label, or of a class index that is written out; other names are refused."""
    label = label.strip()
    if label in labels:
        return labels[label]
    if label.removeprefix("-").isdecimal():
        return int(label)
    known = ", ".join(map(repr, labels)) if labels else "none; give a class index"
    raise Error(f"target label {label!r} is not one of the model's labels: {known}.")
