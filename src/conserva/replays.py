"""Relevance of inputs of one shape, again and again: recorded with the model, replayed without Python.

What a replay needs beside numbers is known from the pass that was recorded: which places there are, what met which
rule. A recording reads the weights where they lay, so it is looked up by their addresses too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .checks import Checks
from .inputs import Inputs
from .ledger import Ledger
from .memory import out_of_memory
from .operations.remembered import Remembered
from .passes import Relevance
from .recording import Recorder

ENTRIES = ("output", "inputs", "positions", "biases")

_PLAIN = (int, str, float, bool, type(None))


def replayed(
    model: nn.Module, call: Inputs, how: Sequence[Any], compute: Callable[[Inputs], list[Relevance]]
) -> list[Relevance]:
    """Return what `compute` makes of a call, by a recording where there is one that is trusted.

    `how` tells one way to explain from another. Where it holds more than plain values, or the call does, or the model
    is not on one GPU, there are no recordings.
    """
    replays, known = _replays_of(model), _known(how)
    tensors = {str(i): x for i, x in _tensors(call)}
    rest = _known([None if isinstance(x, Tensor) else x for x in (*call.args, *call.kwargs.values())])
    if replays is None or known is None or rest is None:
        return compute(call)
    weights = tuple(one.data_ptr() for one in (*model.parameters(), *model.buffers()))
    what = (known, rest, len(call.args), tuple(call.kwargs), weights)
    return replays.run(what, call, tensors, compute)


def _tensors(call: Inputs) -> Iterator[tuple[int, Tensor]]:
    """Yield the tensors among a call's arguments, numbered as they come."""
    return ((i, x) for i, x in enumerate((*call.args, *call.kwargs.values())) if isinstance(x, Tensor))


def _with_tensors(call: Inputs, tensors: Mapping[str, Tensor]) -> Inputs:
    """Return the same call with other tensors."""
    values = [tensors.get(str(i), x) for i, x in enumerate((*call.args, *call.kwargs.values()))]
    count = len(call.args)
    return replace(call, args=tuple(values[:count]), kwargs=dict(zip(call.kwargs, values[count:], strict=True)))


def _known(values: Any) -> Hashable | None:
    """Return plain values as something to look up by; None where there are others."""
    if isinstance(values, (tuple, list)):
        parts = [_known(one) for one in values]
        return None if any(one is None for one in parts) else tuple(parts)
    return (type(values), values) if isinstance(values, _PLAIN) else None


@dataclass
class Replays:
    """The recordings of one model."""

    recorder: Recorder
    forms: dict[Hashable, list[Form]] = field(default_factory=dict)
    seen: dict[Hashable, Remembered] = field(default_factory=dict)

    def run(
        self, what: Hashable, call: Inputs, tensors: Mapping[str, Tensor], compute: Callable[[Inputs], list[Relevance]]
    ) -> list[Relevance]:
        """Return what `compute` makes of the call, or a replay of it."""
        made: list[tuple[list[Relevance], Checks]] = []
        key = (what, tuple((name, x.shape) for name, x in tensors.items()))

        def numbers(inputs: Mapping[str, Tensor]) -> list[Tensor]:
            checks = Checks()
            with checks, self.seen.setdefault(key, Remembered()).during():
                results = compute(_with_tensors(call, inputs))
            made.append((results, checks))
            return [*(x for one in results for x in Form.numbers(one)), torch.stack(checks.flags()).all()]

        try:
            found, is_replay = self.recorder.run(what, tensors, numbers)
        except Exception as error:
            for _, checks in made:
                checks.settle()  # what was found before comes first
            if not out_of_memory(error) or not self.recorder.holds_memory:
                raise
            found, is_replay = [], True
        if not is_replay:
            results, checks = made[0]
            checks.settle()
            self.forms.setdefault(key, [Form.of(one) for one in results])
            return results
        if not found:
            self.recorder.drop()  # out here the traceback is gone, and with it the tensors of the failed try
            return compute(call)
        *values, passed = found
        if not passed:
            return compute(call)  # which says what is wrong
        copies = iter([x.clone() for x in values])  # the next replay writes where these lie
        return [form.filled(copies) for form in self.forms[key]]


@dataclass(frozen=True)
class Form:
    """A relevance without its numbers."""

    places: tuple[str, ...]
    has_logits: bool
    owners: tuple[str, ...] | None
    rest: Relevance

    @classmethod
    def of(cls, one: Relevance) -> Form:
        nothing = one.output[:0]
        rest = replace(one, output=nothing, values={}, logits=None, ledger=None)
        owners = None if one.ledger is None else tuple(one.ledger.modules)
        return cls(tuple(one.values), one.logits is not None, owners, rest)

    @staticmethod
    def numbers(one: Relevance) -> Iterator[Tensor]:
        """Yield all numbers of a relevance, in the order in which `filled` takes them."""
        yield one.output
        yield from one.values.values()
        if one.logits is not None:
            yield one.logits
        if one.ledger is not None:
            yield from (getattr(one.ledger, name) for name in ENTRIES)
            yield from one.ledger.modules.values()

    def filled(self, numbers: Iterator[Tensor]) -> Relevance:
        """Return a relevance of this form."""
        output, values = next(numbers), {place: next(numbers) for place in self.places}
        logits = next(numbers) if self.has_logits else None
        ledger = None
        if self.owners is not None:
            entries = {name: next(numbers) for name in ENTRIES}
            ledger = Ledger(**entries, modules={owner: next(numbers) for owner in self.owners})
        return replace(self.rest, output=output, values=values, logits=logits, ledger=ledger)


_of_models: WeakKeyDictionary[nn.Module, Replays] = WeakKeyDictionary()


def _replays_of(model: nn.Module) -> Replays | None:
    """Return a model's recordings; None where there can be none: several devices, no GPU, or float16.

    A pass in float16 waits for its own numbers, to choose a scale.
    """
    if model not in _of_models:
        parts = {(one.device, one.dtype == torch.float16) for one in model.parameters()}
        device, half = next(iter(parts), (torch.device("cpu"), False))
        if len(parts) != 1 or device.type != "cuda" or half:
            return None
        _of_models[model] = Replays(Recorder(device))
    return _of_models[model]
