"""Tracing: where a decision travels through the layers of a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..attribution import MethodLike, find, rules_of
from ..engine.memory import AUTO
from ..engine.passes import INPUTS
from ..engine.relevance import relevance
from ..engine.rules import DEFAULT, RULE_SETS
from ..engine.targets import plain
from ..errors import Error
from ..results.trace import Trace
from ..tasks.task import Encoded, Task
from .explain import class_of, provenance_of
from .layers import Stack, short_names, stacks_of


def trace(
    task: Task,
    inputs: Any,
    target: Any = None,
    *,
    method: MethodLike = DEFAULT,
    truncate: bool = False,
    trusted: Collection[str] = (),
    checkpoint: str = AUTO,
    fingerprint: bool = False,
) -> Trace:
    """Follow a decision through the layers of a model: the relevance at the output of each.

    Parameters
    ----------
    task
        What `conserva.load` returned, or a task made by hand. The layers must keep the positions of the features;
        positions that the network adds, such as a class token, have columns of their own.
    inputs
        One input, as the task takes it.
    target
        A label, a class index, a contrast "a - b", or None for the predicted class.
    method
        The name of a rule set, with options as in "exact:gamma=0.1", or a rule set of your own.
    truncate, trusted, checkpoint, fingerprint
        As in `conserva.explain`.

    Returns
    -------
    Trace
        Layers x features.

    Examples
    --------
    >>> found = conserva.trace(conserva.load(), "a joy.")
    >>> found.layers[0]
    'inputs'
    """
    if not isinstance(task, Task):
        raise Error(f"task={task!r} is not a task: use conserva.load(...), conserva.Text(...) or conserva.Graph(...).")
    found = find(method)
    rules = rules_of(found)
    if rules is None:
        raise Error(
            f"method={found.name!r} gives no relevance at the layers between: a trace begins at the inputs and needs a "
            f"rule set, one of {', '.join(RULE_SETS)}."
        )
    if not task.is_one(inputs):
        raise Error(f"inputs={inputs!r:.60} is not one {task.noun} as {task.name} takes it: a trace is of one.")
    encoded = task.encode(inputs, truncate=truncate)
    target = plain(target)
    batch, aim = task.batch([encoded]), task.aim(target, encoded)
    stacks = stacks_of(task.model, batch)
    columns = _columns(task, encoded, batch, stacks)
    places = [INPUTS, *(name for stack in stacks for name in stack.modules)]
    result = relevance(task.model, batch, [aim], rules=rules, at=places, trusted=trusted, checkpoint=checkpoint)
    logits, ledger = result.logits, result.ledger
    if logits is None or ledger is None:
        raise Error(f"{type(task.network).__name__} is not a classifier: it gives no score for each class.")
    joined = task.joined(batch, {place: result.scores(place) for place in result.inputs})[0]
    rows = [columns.row(columns.entering, joined)]
    for stack, its in zip(stacks, columns.stacks, strict=True):
        rows += [columns.row(its, result.values[call].sum(-1)[0]) for call in stack.calls]
    index = class_of(task, target, encoded, int(logits[0].argmax()), logits.shape[-1])
    probabilities = task.head.probabilities(logits)
    return Trace(
        features=columns.features,
        special=columns.special,
        words=columns.words,
        layers=("inputs", *short_names(stacks)),
        scores=tuple(rows),
        sums=tuple(sum(score for score in row if score is not None) for row in rows),
        text=encoded.text,
        target=task.titled(target, index, encoded),
        output=float(result.output[0]),
        probability=None if index is None or probabilities is None else float(probabilities[0, index]),
        ledger=ledger.per_sample(result.output)[0],
        method=found.name,
        model=task.name,
        provenance=provenance_of(task, found, fingerprint),
        sections=encoded.sections,
    )


@dataclass(frozen=True)
class _Columns:
    """The columns of a trace, and for the inputs and every stack which place stands in which column."""

    features: tuple[str, ...]
    special: tuple[bool, ...]
    words: tuple[int | None, ...]
    entering: Mapping[int, int]
    stacks: Sequence[Mapping[int, int]]
    """Column -> place."""

    def row(self, places: Mapping[int, int], scores: Tensor) -> tuple[float | None, ...]:
        """Return the scores of one layer in their columns."""
        found = scores.tolist()
        return tuple(found[places[i]] if i in places else None for i in range(len(self.features)))


def _columns(task: Task, encoded: Encoded, inputs: Mapping[str, Tensor], stacks: Sequence[Stack]) -> _Columns:
    """Find the features among the places of the layers; refuse a network where that cannot be told."""
    own = task.own(encoded, inputs).tolist()
    widths = [inputs[name].shape[1] for name in task.features]
    sizes, width, entering = [stack.places for stack in stacks], sum(widths), dict(enumerate(own))
    if sizes == [width]:
        return _Columns(encoded.tokens, encoded.special, encoded.words, entering, [entering])
    if sizes == widths:
        found, first = [], 0
        for size in sizes:
            found.append({i: place - first for i, place in entering.items() if first <= place < first + size})
            first += size
        return _Columns(encoded.tokens, encoded.special, encoded.words, entering, found)
    before = _added_before(task, encoded, inputs, stacks, own) if len(widths) == len(set(sizes)) == 1 else None
    if before is None:
        there = ", ".join(f"{stack.places} in {stack.name}" for stack in stacks) or "no list of layers that keep theirs"
        raise Error(
            f"{type(task.network).__name__}: it cannot be told which places of its layers are the {width} of its "
            f"features: there is {there}. A trace needs layers that keep the features' places; conserva.explain "
            "needs none."
        )
    many = sizes[0] - width
    names = ["[cls]"] if many == 1 else [f"[added {i}]" for i in range(many)]
    places = [*range(before), *(before + place for place in own), *range(before + width, many + width)]
    return _Columns(
        (*names[:before], *encoded.tokens, *names[before:]),
        (*[True] * before, *encoded.special, *[True] * (many - before)),
        (*[None] * before, *encoded.words, *[None] * (many - before)),
        {before + i: place for i, place in entering.items()},
        [dict(enumerate(places))] * len(stacks),
    )


def _added_before(
    task: Task, encoded: Encoded, inputs: Mapping[str, Tensor], stacks: Sequence[Stack], own: Sequence[int]
) -> int | None:
    """Return how many places stand before those of the features: where a feature enters tells, once it is changed.

    None where it enters at none or at several, or elsewhere in each stack, as in a decoder that sees it shifted.
    """
    name = task.features[0]
    given = inputs[name].clone()
    candidates = [place for place, special in zip(own, encoded.special, strict=True) if not special]
    # Another feature's value is one that the network surely takes.
    pairs = ((a, b) for a in reversed(candidates) for b in candidates if not given[0, a].equal(given[0, b]))
    place, other = next(pairs, (None, None))
    if place is None:
        return None
    given[:, place] = given[:, other]
    changed = {stack.name: stack.entering for stack in stacks_of(task.model, {**inputs, name: given})}
    found = set()
    for stack in stacks:
        before, after = stack.entering, changed.get(stack.name)
        if before is None or after is None or before.shape != after.shape:
            return None
        moved = (before != after).any(-1).nonzero().flatten().tolist()
        found.add(moved[0] - place if len(moved) == 1 else -1)
    offset = found.pop()
    return offset if not found and 0 <= offset <= stacks[0].places - inputs[name].shape[1] else None
