"""Relevance of inputs of the same shape, replayed by a recorder.

A replay returns tensors only. All other parts of the result, such as its sites and its coverage, are those of the plain
pass before the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..engine.checks import Checks
from ..engine.inputs import Inputs
from ..engine.ledger import ENTRIES, Ledger
from ..engine.memory import out_of_memory
from ..engine.passes import Relevance
from .recorder import Recorder, hashable


def replayed(
    recorder: Recorder, call: Inputs, how: Sequence[Any], compute: Callable[[Inputs], list[Relevance]]
) -> list[Relevance]:
    """Return the result of `compute(call)`, by a replay if there is a recording for it.

    Parameters
    ----------
    recorder
        The recorder.
    call
        The model's arguments. With arguments other than strided tensors and plain values, nothing is recorded.
    how
        All options of the explanation. If they contain other than plain values, such as functions, nothing is recorded.
    compute
        The plain computation.
    """
    options = hashable(how)
    tensors = {name: x for name, x in _named(call) if isinstance(x, Tensor)}
    rest = hashable([None if isinstance(x, Tensor) else x for x in (*call.args, *call.kwargs.values())])
    if options is None or rest is None or any(x.layout is not torch.strided or x.is_nested for x in tensors.values()):
        return compute(call)
    what = (options, rest, len(call.args), tuple(call.kwargs), call.batch_dim, _are_all_true(tensors))
    key = recorder.key(what, tensors)
    computed: list[list[Relevance]] = []
    collected: list[Checks] = []

    def compute_tensors(inputs: Mapping[str, Tensor]) -> tuple[list[Tensor], list[ResultLayout]]:
        collected.append(checks := Checks())
        with checks:
            results = compute(_with_tensors(call, inputs))
        computed.append(results)
        numbers = [x for result in results for x in ResultLayout.numbers(result)]
        return [*numbers, torch.stack(checks.flags()).all()], [ResultLayout.of(result) for result in results]

    try:
        run = recorder.run(key, tensors, compute_tensors)
    except Exception as error:
        for checks in collected:
            checks.settle()  # a check that failed before takes precedence
        if not out_of_memory(error) or not recorder.holds_memory:
            raise
        run = None
    if run is None:
        recorder.drop()  # outside the except block, where the traceback and the tensors of the attempt are freed
        return compute(call)
    if not run.is_replay:
        collected[0].settle()
        return computed[0]
    *values, passed = run.numbers
    if not passed:
        results = compute(call)  # the caller settles its checks, which raise if something is wrong
        recorder.discard(key)
        return results
    numbers = iter(values)
    return [layout.filled(numbers) for layout in run.note]


def _named(call: Inputs) -> list[tuple[str, Any]]:
    """Return the names and values of a call's arguments."""
    return [*zip(call.names, call.args, strict=True), *call.kwargs.items()]


def _are_all_true(tensors: Mapping[str, Tensor]) -> tuple[bool, ...]:
    """Return for each mask whether it masks nothing: models drop such masks, and use other kernels."""
    return tuple(bool(x.all()) for name, x in tensors.items() if name.endswith("mask"))


def _with_tensors(call: Inputs, tensors: Mapping[str, Tensor]) -> Inputs:
    """Return the same call with other tensors."""
    values = [tensors.get(name, x) for name, x in _named(call)]
    count = len(call.args)
    return replace(call, args=tuple(values[:count]), kwargs=dict(zip(call.kwargs, values[count:], strict=True)))


@dataclass(frozen=True)
class ResultLayout:
    """A result without its tensors."""

    sites: tuple[str, ...]
    has_logits: bool
    has_ledger: bool
    owners: tuple[str, ...]
    rest: Relevance

    @classmethod
    def of(cls, result: Relevance) -> ResultLayout:
        empty = result.output.new_empty(0)
        rest = replace(result, output=empty, values={}, logits=None, ledger=None, modules={})
        has_ledger = result.ledger is not None
        return cls(tuple(result.values), result.logits is not None, has_ledger, tuple(result.modules), rest)

    @staticmethod
    def numbers(result: Relevance) -> Iterator[Tensor]:
        """Yield all tensors of a result, in the order in which `filled` takes them."""
        yield result.output
        yield from result.values.values()
        if result.logits is not None:
            yield result.logits
        if result.ledger is not None:
            yield from (getattr(result.ledger, name) for name in ENTRIES)
        if result.modules:
            yield torch.stack(list(result.modules.values()))  # one copy instead of many

    def filled(self, numbers: Iterator[Tensor]) -> Relevance:
        """Return a result of this layout with the given tensors."""
        output, values = next(numbers), {site: next(numbers) for site in self.sites}
        logits = next(numbers) if self.has_logits else None
        ledger = Ledger(*(next(numbers) for _ in ENTRIES)) if self.has_ledger else None
        modules = dict(zip(self.owners, next(numbers).unbind() if self.owners else (), strict=True))
        return replace(self.rest, output=output, values=values, logits=logits, ledger=ledger, modules=modules)
