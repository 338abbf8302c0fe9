"""The run: which items the model answers, what each method says about them, and how well that fits the evidence.

Everything is written to a journal as it is found, a line for each item and method, so that a run that was stopped goes
on where it was, and that further items, kinds and methods are added to what is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import conserva
from conserva._util.journal import Journal
from conserva.attribution import find
from conserva.tasks import Causal

from . import ablation, methods
from .item import Item, Source, of_split
from .kinds import KINDS
from .measures import lds, measures
from .reading import LEVELS, SCOPES, Read, answers, read


@dataclass(frozen=True)
class Settings:
    """What every result depends on; a journal has the results of one such."""

    target: str = "first"
    begin: str = ""
    """What is put before plain prompts."""
    ablations: int = 32
    parts: int = 32
    """The most parts of a document that ablations and leave-one-out remove."""
    seed: int = 0


@dataclass(frozen=True)
class Amount:
    """How much is measured, which does not change any single result."""

    items: int = 20
    """How many items of a kind the model must have answered."""
    tries: int = 200
    """After how many items of a kind no more are tried."""
    tokens: int = 512
    """Longer items are passed over."""
    timed: int = 10
    """Of how many items of a kind the costs are measured."""


@dataclass
class Found:
    """What is in the journal."""

    tried: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Key of an item -> whether it was answered, and what it is."""
    rows: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """Key of an item and method -> its measures."""
    outputs: dict[str, list[float]] = field(default_factory=dict)
    """Key of an item -> the model's output under each ablation."""

    def take(self, line: Mapping[str, Any]) -> None:
        """Take a line of the journal."""
        row = {name: value for name, value in line.items() if name != "checksum"}
        if "method" in row:
            self.rows[row["item"], row["method"]] = row
        elif "outputs" in row:
            self.outputs[row["item"]] = row["outputs"]
        else:
            self.tried[row["item"]] = row


class Run:
    """A run with one model."""

    def __init__(self, task: Causal, settings: Settings, amount: Amount, journal: Journal) -> None:
        self.task, self.settings, self.amount, self.journal = task, settings, amount, journal
        self.found = Found()
        for _, line in journal.records:
            self.found.take(line)

    def kind(self, name: str, source: Source, split: str, wanted: Sequence[str]) -> list[str]:
        """Measure the items of a kind; return the keys of those that were answered and measured."""
        measured: list[str] = []
        for one in self.answered(of_split(KINDS[name](source), split)):
            self.measure(one, wanted, timed=len(measured) < self.amount.timed)
            measured.append(one.item.key)
        return measured

    def answered(self, items: Iterator[Item]) -> Iterator[Read]:
        """Yield the items that the model answers, until there are enough or too many were tried."""
        tried = right = 0
        for item in items:
            if right == self.amount.items or tried == self.amount.tries:
                return
            one = read(self.task, item, self.settings.begin)
            if one is None or not self._fits(one) or not usable(one):
                continue
            tried += 1
            if item.key not in self.found.tried:
                said = answers(self.task, one)
                about = {"kind": item.kind, "tokens": len(one), "labels": dict(item.labels), "chance": chance(one)}
                self._write({"item": item.key, **about, "first": said[0], "right": all(said)})
            if self.found.tried[item.key]["right"]:
                right += 1
                yield one

    def _fits(self, one: Read) -> bool:
        return len(one) <= self.amount.tokens and len(one) + len(one.answer) <= self.task.longest

    def measure(self, one: Read, wanted: Sequence[str], timed: bool) -> None:
        """Measure the methods on an item, unless the journal has them."""
        missing = [name for name in wanted if (one.item.key, name) not in self.found.rows]
        if not missing:
            return
        parts = ablation.units(one, self.settings.parts)
        kept = ablation.drawn(one, parts, self.settings.ablations, self.settings.seed)
        if one.item.key not in self.found.outputs and len(kept):
            outputs = ablation.outputs(self.task, one, parts, kept, self.settings.target)
            self._write({"item": one.item.key, "outputs": outputs.tolist()})
        outputs = np.array(self.found.outputs.get(one.item.key, []))
        for name in missing:
            self._write({"item": one.item.key, "kind": one.item.kind, "method": name,
                         **self._row(one, name, parts, kept, outputs, timed)})  # fmt: skip

    def _row(
        self, one: Read, method: str, parts: np.ndarray, kept: np.ndarray, outputs: np.ndarray, timed: bool
    ) -> dict[str, Any]:
        # A forward pass right before each method: what slows the machine then slows both.
        before = methods.timed(self.task, lambda: methods.forward(self.task, one))[1] if timed else None
        try:
            scores, seconds = methods.timed(
                self.task, lambda: methods.scores(self.task, one, method, parts, self.settings.target)
            )
        except conserva.Error as error:  # the other methods go on
            return {"skipped": str(error)}
        finite = bool(np.isfinite(scores).all())
        if not finite:  # such scores point nowhere
            return {"finite": False}
        row: dict[str, Any] = {"finite": True, "measures": measured(one, scores)}
        if len(kept):
            row["lds"] = round(lds(ablation.sums(scores, parts), kept, outputs), 5)
        if before:
            row["cost"] = round(seconds / before, 3)
        return row

    def _write(self, line: dict[str, Any]) -> None:
        self.journal.append(line)
        self.found.take(line)


def usable(one: Read) -> bool:
    """Return whether the document has evidence, and something else to tell it from."""
    inside = one.evidence[one.places("document")]
    return bool(inside.any() and not inside.all())


def chance(one: Read) -> dict[str, float]:
    """Return the share of the evidence in each "scope level": how often a random feature is evidence."""
    none = np.zeros(len(one))
    return {
        f"{scope} {level}": round(float(one.features(none, scope, level)[1].mean()), 5)
        for scope in SCOPES
        for level in LEVELS
    }


def measured(one: Read, scores: np.ndarray) -> dict[str, dict[str, float]]:
    """Return the measures by "scope level", and the shares of what is not among the user's tokens."""
    found: dict[str, dict[str, float]] = {}
    for scope in SCOPES:
        for level in LEVELS:
            numbers = measures(*one.features(scores, scope, level))
            found[f"{scope} {level}"] = {name: round(value, 5) for name, value in numbers.items()}
    amounts = np.abs(scores)
    total = float(amounts.sum()) or 1.0
    template = ~one.own
    template[0] = False
    shares = {"sink": float(amounts[0]) / total, "template": float(amounts[template].sum()) / total}
    found["shares"] = {name: round(value, 5) for name, value in shares.items()}
    return found


def checked(task: Any, kinds: Sequence[str], wanted: Sequence[str]) -> Causal:
    """Return the task; raise an `Error` for what cannot run, before anything does."""
    if not isinstance(task, Causal):
        raise conserva.Error(f"{task!r} is not a causal language model.")
    for name in kinds:
        if name not in KINDS:
            raise conserva.Error(f"kind={name!r} is unknown: choose of {', '.join(KINDS)}.")
    for name in wanted:
        if name != methods.LEAVE_ONE_OUT:
            find(name)
    return task
