"""Relevance of inputs of one shape, again and again, by a recorder: replayed without Python.

What a replay cannot tell is known from the pass before it was recorded: which places there are, what met which rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..engine.checks import Checks
from ..engine.inputs import Inputs
from ..engine.ledger import Ledger
from ..engine.memory import out_of_memory
from ..engine.passes import Relevance
from .recorder import Recorder, hashable

ENTRIES = ("output", "inputs", "positions", "biases")


def replayed(
    recorder: Recorder, call: Inputs, how: Sequence[Any], compute: Callable[[Inputs], list[Relevance]]
) -> list[Relevance]:
    """Return what `compute` makes of a call, by a replay where there is a recording for it.

    `how` tells one way to explain from another. Where it or the call holds more than tensors and plain values, such as
    functions, or tensors that are sparse or nested, nothing is recorded.
    """
    way = hashable(how)
    tensors = {name: x for name, x in _named(call) if isinstance(x, Tensor)}
    rest = hashable([None if isinstance(x, Tensor) else x for x in (*call.args, *call.kwargs.values())])
    if way is None or rest is None or any(x.layout is not torch.strided or x.is_nested for x in tensors.values()):
        return compute(call)
    what = (way, rest, len(call.args), tuple(call.kwargs), call.batch_dim, _hide_nothing(tensors))
    key = recorder.key(what, tensors)
    made: list[list[Relevance]] = []
    asked: list[Checks] = []

    def noted(inputs: Mapping[str, Tensor]) -> tuple[list[Tensor], list[ResultLayout]]:
        asked.append(checks := Checks())
        with checks:
            results = compute(_with_tensors(call, inputs))
        made.append(results)
        numbers = [x for one in results for x in ResultLayout.numbers(one)]
        return [*numbers, torch.stack(checks.flags()).all()], [ResultLayout.of(one) for one in results]

    try:
        ran = recorder.run(key, tensors, noted)
    except Exception as error:
        for checks in asked:
            checks.settle()  # what was found before comes first
        if not out_of_memory(error) or not recorder.holds_memory:
            raise
        ran = None
    if ran is None:
        recorder.drop()  # out here the traceback is gone, and with it the tensors of the failed try
        return compute(call)
    if not ran.is_replay:
        asked[0].settle()
        return made[0]
    *values, passed = ran.numbers
    if not passed:
        found = compute(call)  # whose checks, which the caller settles, say what is wrong
        recorder.discard(key)
        return found
    numbers = iter(values)
    return [form.filled(numbers) for form in ran.note]


def _named(call: Inputs) -> list[tuple[str, Any]]:
    """Return a call's arguments, each with its name."""
    return [*zip(call.names, call.args, strict=True), *call.kwargs.items()]


def _hide_nothing(tensors: Mapping[str, Tensor]) -> tuple[bool, ...]:
    """Return for each mask whether it hides nothing: models leave such masks away, and take other kernels."""
    return tuple(bool(x.all()) for name, x in tensors.items() if name.endswith("mask"))


def _with_tensors(call: Inputs, tensors: Mapping[str, Tensor]) -> Inputs:
    """Return the same call with other tensors."""
    values = [tensors.get(name, x) for name, x in _named(call)]
    count = len(call.args)
    return replace(call, args=tuple(values[:count]), kwargs=dict(zip(call.kwargs, values[count:], strict=True)))


@dataclass(frozen=True)
class ResultLayout:
    """A relevance without its numbers."""

    places: tuple[str, ...]
    has_logits: bool
    owners: tuple[str, ...] | None
    rest: Relevance

    @classmethod
    def of(cls, one: Relevance) -> ResultLayout:
        nothing = one.output.new_empty(0)
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
            if one.ledger.modules:
                yield torch.stack(list(one.ledger.modules.values()))  # many, which would be copied one by one

    def filled(self, numbers: Iterator[Tensor]) -> Relevance:
        """Return a relevance of this form."""
        output, values = next(numbers), {place: next(numbers) for place in self.places}
        logits = next(numbers) if self.has_logits else None
        ledger = None
        if self.owners is not None:
            entries = {name: next(numbers) for name in ENTRIES}
            shares = next(numbers).unbind() if self.owners else ()
            ledger = Ledger(**entries, modules=dict(zip(self.owners, shares, strict=True)))
        return replace(self.rest, output=output, values=values, logits=logits, ledger=ledger)
