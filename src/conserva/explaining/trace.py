"""A trace: where a decision travels, as relevance at the inputs and at the output of every layer, place by place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..attribution import find, rules_of
from ..engine.passes import INPUTS
from ..engine.relevance import relevance
from ..engine.rules import RULE_SETS
from ..engine.targets import plain
from ..errors import Error
from ..results.explanation import Entries, Explanation, uncovered
from ..results.saving import loaded, saved
from ..results.schema import Count, Share, read, uneven, unsummed, written
from ..tasks.task import Encoded, Task
from .explain import class_of, provenance_of
from .layers import Stack, short_names, stacks_of

SCHEMA = "conserva/trace/1"


@dataclass(frozen=True)
class Trace:
    """Relevance at the inputs and at the output of every layer: rows of layers x features."""

    features: tuple[str, ...]
    """The columns: the input's features, and the places that the network adds to them, such as "[cls]"."""
    special: tuple[bool, ...]
    words: tuple[int | None, ...]
    """Which word of the text, or which part of another input, a feature belongs to."""
    layers: tuple[str, ...]
    """The rows, from the input to the output: "inputs", "layer 0", and so on."""
    scores: tuple[tuple[float | None, ...], ...]
    """Layers x features; None where a layer has no such place."""
    sums: tuple[float, ...]
    """The sum of each row. What is missing to the output joins it further on, or is lost by the rules."""
    text: str
    target: str
    output: float
    probability: Share | None
    """The probability of the target, if it is one of the model's classes."""
    ledger: Entries | None
    method: str
    model: str
    provenance: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[tuple[str, Count], ...] = ()
    """Where the features come from several inputs: what each is called, and how many of the features it has."""

    def explanation(self) -> Explanation:
        """Return the first row as an explanation: what `conserva.explain` gives, without a picture."""
        there = [i for i, score in enumerate(self.scores[0]) if score is not None]
        return Explanation(
            features=tuple(self.features[i] for i in there),
            scores=tuple(score for score in self.scores[0] if score is not None),
            special=tuple(self.special[i] for i in there),
            words=tuple(self.words[i] for i in there),
            text=self.text,
            target=self.target,
            output=self.output,
            probability=self.probability,
            ledger=self.ledger,
            method=self.method,
            model=self.model,
            provenance=self.provenance,
            sections=self.sections,
        )

    def to_json(self) -> str:
        """Return the trace as JSON."""
        return written(self, SCHEMA)

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """Return the trace that `to_json` wrote."""
        return read(cls, text, SCHEMA, "trace")

    def save(self, path: str | Path) -> Path:
        """Write JSON, a page or a picture, as the name's ending says: .json, .html, .png, .svg, .pdf."""
        from ..views.trace import draw_trace, trace_page

        texts = {".json": lambda: self.to_json() + "\n", ".html": lambda: trace_page(self)}
        return saved(path, texts, lambda path: draw_trace(self, path))

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace that was saved as JSON."""
        return read(cls, loaded(path), SCHEMA, "trace", f"path={str(path)!r}")

    def show(self) -> None:
        """Print the trace to the terminal."""
        from ..views.trace import show_trace

        show_trace(self)

    def _repr_html_(self) -> str:
        from ..views.trace import trace_fragment

        return trace_fragment(self)

    def _flaws(self) -> Iterator[str]:
        many = len(self.features)
        yield from uneven(self, "features", "special", "words")
        yield from uneven(self, "layers", "scores", "sums")
        if not many or not self.layers:
            yield "features or layers has no entry"
        for i, (row, total) in enumerate(zip(self.scores, self.sums, strict=False)):
            if len(row) != many:
                yield f"scores[{i}] has {len(row)} entries, and there are {many} features"
            yield from unsummed(f"scores[{i}]", [score for score in row if score is not None], total, f"sums[{i}]")
        yield from uncovered(self.sections, sum(score is not None for row in self.scores[:1] for score in row))
        if self.ledger is not None:
            yield from self.ledger.unequal(self.output)


def trace(task: Task, given: Any, target: Any = None, method: str | None = None, *, truncate: bool = False) -> Trace:
    """Follow a decision through the layers of a model.

    Parameters
    ----------
    task
        What `conserva.load` returned, or a task of your own. The layers must keep the places of the features; places
        that the network adds, such as a class token, have columns of their own.
    given
        One input, as the task takes it.
    target
        A label, a class index, a contrast "a - b", or None for the predicted class.
    method
        A rule set, with its `gamma` if you like: "exact", "ah+ln:gamma=0.01"; None for the task's own method.
    truncate
        Whether a text longer than the model takes is cut; otherwise it is refused.
    """
    if not isinstance(task, Task):
        raise Error(f"task={task!r} is no task: use conserva.load(...), conserva.Text(...) or conserva.Graph(...).")
    found = find(task.method if method is None else method)
    rules = rules_of(found)
    if rules is None:
        raise Error(
            f"method={found.name!r} gives no relevance at the layers between: a trace begins at the inputs and needs a "
            f"rule set, one of {', '.join(RULE_SETS)}."
        )
    if not task.is_one(given):
        raise Error(f"given={given!r:.60} is no {task.noun} that {task.name} takes: a trace is of one input.")
    encoded = task.encode(given, truncate=truncate)
    target = plain(target)
    inputs, aim = task.batch([encoded]), task.aim(target, encoded)
    stacks = stacks_of(task.model, inputs)
    columns = _columns(task, encoded, inputs, stacks)
    places = [INPUTS, *(name for stack in stacks for name in stack.modules)]
    result = relevance(task.model, inputs, [aim], rules=rules, at=places)
    logits, ledger = result.logits, result.ledger
    if logits is None or ledger is None:
        raise Error(f"{type(task.network).__name__} is no classifier: it gives no score for each class.")
    joined = task.joined(inputs, {place: result.scores(place) for place in result.inputs})[0]
    rows = [columns.row(columns.entering, joined)]
    for stack, its in zip(stacks, columns.stacks, strict=True):
        rows += [columns.row(its, result.values[call].sum(-1)[0]) for call in stack.calls]
    index = class_of(task, target, encoded, int(logits[0].argmax()), logits.shape[-1])
    probabilities = task.head.probabilities(logits)
    books = [float(part[0]) for part in (result.output, ledger.inputs, ledger.positions, ledger.biases)]
    return Trace(
        features=columns.features,
        special=columns.special,
        words=columns.words,
        layers=("inputs", *short_names(stacks)),
        scores=tuple(rows),
        sums=tuple(sum(score for score in row if score is not None) for row in rows),
        text=encoded.text,
        target=task.titled(target, index, encoded),
        output=books[0],
        probability=None if index is None or probabilities is None else float(probabilities[0, index]),
        ledger=Entries.of(*books),
        method=found.name,
        model=task.name,
        provenance=provenance_of(task, found),
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
