"""Relevance of inputs of one shape, again and again: recorded with the model, replayed without Python.

What a replay needs beside numbers is known from the pass that was recorded: which places there are, what met which
rule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .checks import Checks
from .inputs import Inputs
from .kept import presumed, recorded
from .ledger import Ledger
from .memory import out_of_memory
from .passes import Relevance
from .recording import Begun, Recorder, known

ENTRIES = ("output", "inputs", "positions", "biases")


def replayed(
    model: nn.Module,
    call: Inputs,
    how: Sequence[Any],
    compute: Callable[[Inputs], list[Relevance]],
    *,
    cautious: bool,
) -> list[Relevance]:
    """Return what `compute` makes of a call, by a recording where there is one that is trusted.

    `how` tells one way to explain from another. Where it holds more than plain values, or the call does, or tensors
    that are sparse or nested, or the model is not on one GPU, there are no recordings. A cautious one is the same to
    the bit, and is made while no other thread is at work.
    """
    way = known(how)
    tensors = {name: x for name, x in _named(call) if isinstance(x, Tensor)}
    rest = known([None if isinstance(x, Tensor) else x for x in (*call.args, *call.kwargs.values())])
    if way is None or rest is None or any(x.layout is not torch.strided or x.is_nested for x in tensors.values()):
        return compute(call)
    form = Recorder.key((way, rest, len(call.args), tuple(call.kwargs), call.batch_dim), tensors, cautious)
    expected, hidden, begun = presumed(model, form), None, None
    if expected is not None:
        hidden = _hide_nothing(tensors)
        with contextlib.suppress(Exception):  # it shows again, where there is an answer to it
            begun = expected.recorder.begin((form, expected.state, hidden), tensors, cautious=cautious)
    place = recorded(model, form)  # the device is at work meanwhile
    if place != expected:
        begun = None
    del expected  # either holds recordings, whose memory the rest may need
    if place is None:
        return compute(call)
    what = (form, place.state, _hide_nothing(tensors) if hidden is None else hidden)
    found = _run(place.recorder, what, call, tensors, compute, cautious, begun)
    if place.recorder.never_pays(Recorder.key(what, tensors, cautious)):
        place.recorder.vain.add(form)  # from now on the model is not even looked at
    return found


def _named(call: Inputs) -> list[tuple[str, Any]]:
    """Return a call's arguments, each with its name."""
    return [*zip(call.names, call.args, strict=True), *call.kwargs.items()]


def _hide_nothing(tensors: Mapping[str, Tensor]) -> tuple[bool, ...]:
    """Return for each mask whether it hides nothing: models leave such away, and take other kernels."""
    return tuple(bool(x.all()) for name, x in tensors.items() if name.endswith("mask"))


def _with_tensors(call: Inputs, tensors: Mapping[str, Tensor]) -> Inputs:
    """Return the same call with other tensors."""
    values = [tensors.get(name, x) for name, x in _named(call)]
    count = len(call.args)
    return replace(call, args=tuple(values[:count]), kwargs=dict(zip(call.kwargs, values[count:], strict=True)))


def _run(
    recorder: Recorder,
    what: Hashable,
    call: Inputs,
    tensors: Mapping[str, Tensor],
    compute: Callable[[Inputs], list[Relevance]],
    cautious: bool,
    begun: Begun | None,
) -> list[Relevance]:
    """Return what `compute` makes of the call, or a replay of it."""
    made: list[list[Relevance]] = []
    asked: list[Checks] = []
    key = recorder.key(what, tensors, cautious)

    def numbers(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        asked.append(checks := Checks())
        with checks:
            results = compute(_with_tensors(call, inputs))
        made.append(results)
        if recorder.is_recording:
            recorder.notes[key] = [Form.of(one) for one in results]
        return [*(x for one in results for x in Form.numbers(one)), torch.stack(checks.flags()).all()]

    try:
        found, is_replay = recorder.run(what, tensors, numbers, cautious=cautious, begun=begun)
    except Exception as error:
        for checks in asked:
            checks.settle()  # what was found before comes first
        if not out_of_memory(error) or not recorder.holds_memory:
            raise
        found, is_replay = [], True
    if not is_replay:
        asked[0].settle()
        return made[0]
    if not found:
        recorder.drop()  # out here the traceback is gone, and with it the tensors of the failed try
        return compute(call)
    *values, passed = found
    forms = recorder.notes.get(key)
    if forms is None or not passed:
        try:
            numbers(tensors)
        finally:
            asked[-1].settle()  # which says what is wrong
        recorder.distrust(key)
        return made[-1]
    rest = iter(values)
    return [form.filled(rest) for form in forms]


@dataclass(frozen=True)
class Form:
    """A relevance without its numbers."""

    places: tuple[str, ...]
    has_logits: bool
    owners: tuple[str, ...] | None
    rest: Relevance

    @classmethod
    def of(cls, one: Relevance) -> Form:
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
                yield torch.stack(list(one.ledger.modules.values()))  # which are many, and would be copied one by one

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
