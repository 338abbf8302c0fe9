"""`conserva.trace`: relevance at the output of every layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from ..attribution import MethodLike, find, rules_of
from ..engine.memory import AUTO
from ..engine.passes import INPUTS
from ..engine.relevance import relevance
from ..engine.rules import DEFAULT, RULE_SETS
from ..engine.targets import plain
from ..errors import Error
from ..results.trace import Trace
from ..tasks.task import Encoded, Task, require_task
from ..tasks.user_inputs import single_input
from .explained import class_of, class_scores, provenance_of
from .layers import Stack, short_names, stacks_of

Value = TypeVar("Value")


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
    """Explain one input with the relevance at the output of every layer.

    Parameters
    ----------
    task
        A task: the result of `conserva.load`, or an instance such as `conserva.Text(model, tokenizer)`. The layers must
        preserve the positions of the features. Positions that the network adds, such as a class token, get their own
        columns.
    inputs
        A single input of the task.
    target
        A label, a class index, a contrast "a - b", or None for the predicted class.
    method
        The name of a rule set, optionally with options, such as "exact:gamma=0.1", or a custom rule set.
    truncate, trusted, checkpoint, fingerprint
        As in `conserva.explain`.

    Returns
    -------
    Trace
        The scores, layers x features, and the ledger.

    Examples
    --------
    >>> result = conserva.trace(conserva.load(), "a joy.")
    >>> result.layers[0]
    'inputs'
    """
    require_task(task)
    chosen = find(method)
    rules = rules_of(chosen)
    if rules is None:
        raise Error(
            f"method={chosen.name!r} gives no relevance at hidden layers: a trace needs a rule set at the inputs, one "
            f"of {', '.join(RULE_SETS)}."
        )
    encoded = task.encode(single_input(task, inputs), truncate=truncate)
    target = plain(target)
    batch, aim = task.batch([encoded]), task.resolve_target(target, encoded)
    stacks = stacks_of(task.model, batch)
    columns = _columns(task, encoded, batch, stacks)
    sites = [INPUTS, *(name for stack in stacks for name in stack.modules)]
    result = relevance(task.model, batch, [aim], rules=rules, at=sites, trusted=trusted, checkpoint=checkpoint)
    logits, ledger = result.logits, result.ledger
    if logits is None or ledger is None:
        raise Error(f"{type(task.network).__name__} is not a classifier: its output has no logits.")
    joined = task.feature_scores(batch, {name: result.scores(name) for name in result.inputs})[0]
    rows = [columns.row(columns.inputs, joined)]
    for stack, positions in zip(stacks, columns.stacks, strict=True):
        rows += [columns.row(positions, result.values[call].sum(-1)[0]) for call in stack.calls]
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
        target=task.target_title(target, index, encoded),
        output=float(result.output[0]),
        probability=None if index is None or probabilities is None else float(probabilities[0, index]),
        ledger=ledger.per_sample(result.output)[0],
        method=chosen.name,
        model=task.name,
        provenance=provenance_of(task, chosen, fingerprint),
        sections=encoded.sections,
        offsets=columns.of_features(encoded.offsets),
        unknown=tuple(map(bool, columns.of_features(encoded.unknown))),
        classes=class_scores(task, encoded, logits[0], None if probabilities is None else probabilities[0], index),
    )


@dataclass(frozen=True)
class _Columns:
    """The columns of a trace, and the position that each column has in the inputs and in every stack of layers."""

    features: tuple[str, ...]
    special: tuple[bool, ...]
    words: tuple[int | None, ...]
    inputs: Mapping[int, int]
    """Column -> position in the inputs."""
    stacks: Sequence[Mapping[int, int]]
    """For each stack: column -> position in its layers."""

    def of_features(self, values: Sequence[Value]) -> tuple[Value | None, ...]:
        """Arrange one value for each feature in columns; None for positions that the network adds."""
        arranged = dict(zip(self.inputs, values, strict=False))
        return tuple(arranged.get(i) for i in range(len(self.features)))

    def row(self, positions: Mapping[int, int], scores: Tensor) -> tuple[float | None, ...]:
        """Arrange the scores of one layer in columns; None where the layer lacks the position."""
        values = scores.tolist()
        return tuple(values[positions[i]] if i in positions else None for i in range(len(self.features)))


def _columns(task: Task, encoded: Encoded, inputs: Mapping[str, Tensor], stacks: Sequence[Stack]) -> _Columns:
    """Map the features to positions in the layers; raise if the network does not preserve positions."""
    own = task.feature_positions(encoded, inputs).tolist()
    widths = [inputs[name].shape[1] for name in task.features]
    sizes, width, at_inputs = [stack.positions for stack in stacks], sum(widths), dict(enumerate(own))
    if sizes == [width]:
        return _Columns(encoded.tokens, encoded.special, encoded.words, at_inputs, [at_inputs])
    if sizes == widths:
        at_stacks, first = [], 0
        for size in sizes:
            at_stacks.append({i: at - first for i, at in at_inputs.items() if first <= at < first + size})
            first += size
        return _Columns(encoded.tokens, encoded.special, encoded.words, at_inputs, at_stacks)
    before = _added_before(task, encoded, inputs, stacks, own) if len(widths) == len(set(sizes)) == 1 else None
    if before is None:
        lengths = ", ".join(f"{stack.positions} in {stack.name}" for stack in stacks)
        raise Error(
            f"{type(task.network).__name__} cannot be traced: the {width} positions of the features cannot be matched "
            f"with those of its layers ({lengths or 'no list of layers has a fixed number'}). Use conserva.explain."
        )
    many = sizes[0] - width
    names = ["[cls]"] if many == 1 else [f"[added {i}]" for i in range(many)]
    positions = [*range(before), *(before + position for position in own), *range(before + width, many + width)]
    return _Columns(
        (*names[:before], *encoded.tokens, *names[before:]),
        (*[True] * before, *encoded.special, *[True] * (many - before)),
        (*[None] * before, *encoded.words, *[None] * (many - before)),
        {before + i: position for i, position in at_inputs.items()},
        [dict(enumerate(positions))] * len(stacks),
    )


def _added_before(
    task: Task, encoded: Encoded, inputs: Mapping[str, Tensor], stacks: Sequence[Stack], own: Sequence[int]
) -> int | None:
    """Return the number of positions that the network adds before the features.

    It is measured: one feature is changed, and the position where the hidden states change is compared with the
    feature's own. None if no position or several change, or if the stacks differ, as with a decoder's shifted inputs.
    """
    name = task.features[0]
    given = inputs[name].clone()
    candidates = [position for position, special in zip(own, encoded.special, strict=True) if not special]
    # The value of another feature is certain to be valid.
    pairs = ((a, b) for a in reversed(candidates) for b in candidates if not given[0, a].equal(given[0, b]))
    position, other = next(pairs, (None, None))
    if position is None:
        return None
    given[:, position] = given[:, other]
    changed = {stack.name: stack.entering for stack in stacks_of(task.model, {**inputs, name: given})}
    offsets = set()
    for stack in stacks:
        before, after = stack.entering, changed.get(stack.name)
        if before is None or after is None or before.shape != after.shape:
            return None
        differing = (before != after).any(-1).nonzero().flatten().tolist()
        offsets.add(differing[0] - position if len(differing) == 1 else -1)
    offset = offsets.pop()
    return offset if not offsets and 0 <= offset <= stacks[0].positions - inputs[name].shape[1] else None
