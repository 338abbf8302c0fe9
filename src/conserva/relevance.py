"""Forward under rules, one gradient, and R = x * dF/dx."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor, nn

from . import census
from .coverage import Meeting
from .diagnosis import first_bad_module
from .errors import Error
from .ledger import Books, Ledger, Unbatchable
from .operations.live import in_float32
from .propagation import Propagation, as_rule_set
from .rules import RuleSet
from .inputs import Inputs
from .sources import Sources
from .targets import Target, labels_of, read_target

INPUTS, EMBEDDINGS = "inputs", "embeddings"
HALF_SCALE = 256.0


class _NotFinite(Exception):
    """The relevance at a place has nan or inf."""


@dataclass(frozen=True)
class Relevance:
    """How an output splits: relevance at every place asked for, the books, and what met which rule."""

    output: Tensor
    """The explained number of each sample."""
    values: Mapping[str, Tensor]
    """Place -> relevance of each element there, in float32 or wider."""
    ledger: Ledger | None
    coverage: Sequence[Meeting]
    rules: RuleSet

    def scores(self, place: str | None = None) -> Tensor:
        """Return the relevance of each feature: the sum over the last axis, at the one place or at a named one."""
        place = next(iter(self.values)) if place is None else place
        if place not in self.values:
            raise Error(f"place={place!r} was not asked for: there is {', '.join(map(repr, self.values))}.")
        return self.values[place].sum(-1)


@overload
def relevance(
    model: nn.Module,
    inputs: Any,
    target: Target | Sequence[Target] | Tensor = ...,
    *,
    targets: None = ...,
    rules: str | RuleSet | Propagation = ...,
    at: str | Sequence[str] = ...,
    ledger: bool = ...,
    batch_dim: int = ...,
    trusted: Collection[str] = ...,
) -> Relevance: ...


@overload
def relevance(
    model: nn.Module,
    inputs: Any,
    *,
    targets: Sequence[Target | Sequence[Target] | Tensor],
    rules: str | RuleSet | Propagation = ...,
    at: str | Sequence[str] = ...,
    ledger: bool = ...,
    batch_dim: int = ...,
    trusted: Collection[str] = ...,
) -> list[Relevance]: ...


def relevance(
    model: nn.Module,
    inputs: Any,
    target: Target | Sequence[Target] | Tensor = None,
    *,
    targets: Sequence[Target | Sequence[Target] | Tensor] | None = None,
    rules: str | RuleSet | Propagation = "ah+ln",
    at: str | Sequence[str] = INPUTS,
    ledger: bool = True,
    batch_dim: int = 0,
    trusted: Collection[str] = (),
) -> Relevance | list[Relevance]:
    """Split a model's output among its inputs.

    Parameters
    ----------
    model
        Any PyTorch Transformer, in evaluation mode. It is not changed.
    inputs
        What it is called with: a tokenizer's output or another mapping, a tensor, or a tuple of arguments.
    target
        What to explain: a class index, a label, a contrast "a - b", an index tuple into a sample's output, a function
        of the output that returns a number for each sample, or None for the highest score. A list has one a sample.
    targets
        Several targets of the same inputs, from one forward pass; a list of results comes back.
    rules
        A rule set's name, or what `conserva.rules(...)` returned.
    at
        Where relevance is read: "inputs" (word embeddings, pixels, ...), "embeddings" (the output of a Hugging Face
        model's embedding block, the choice of Ali et al. 2022), or names of modules, with wildcards, at once.
    ledger
        Whether to keep the books.
    batch_dim
        The axis of the inputs that holds the samples.
    trusted
        Names of foreign autograd functions that are linear in their input, such as those of quantised layers.
    """
    if not isinstance(model, nn.Module):
        raise Error(f"model={model!r} is no torch.nn.Module.")
    census.refuse_sealed(model)
    rule_set, call = as_rule_set(rules), Inputs.of(model, inputs, batch_dim)
    wanted = [target] if targets is None else list(targets)
    if not wanted:
        raise Error("targets=[] asks for nothing: give at least one target.")
    places = [at] if isinstance(at, str) else list(at)
    explain = _Run(model, rule_set, places, ledger, trusted)
    try:
        results = explain(call, wanted)
    except Unbatchable:
        samples = range(call.samples())
        singles = [explain(call.sample(i), [_of_sample(one, i, len(samples)) for one in wanted]) for i in samples]
        results = [_joined([single[k] for single in singles], batch_dim) for k in range(len(wanted))]
    return results[0] if targets is None else results


@dataclass(frozen=True)
class _Run:
    """One forward pass under rules, and a gradient for each target."""

    model: nn.Module
    rules: RuleSet
    places: Sequence[str]
    keep_books: bool
    trusted: Collection[str]

    def __call__(self, call: Inputs, targets: Sequence[Target | Sequence[Target] | Tensor]) -> list[Relevance]:
        features, samples = call.features(), call.samples()
        modules = [place for place in self.places if place not in (INPUTS, EMBEDDINGS)]
        sources = Sources(self.model, features, len(modules) < len(self.places), modules)
        books = Books(samples, call.batch_dim) if self.keep_books else None
        context = Propagation(self.rules, books, sources)
        if EMBEDDINGS in self.places:
            call = call.with_(output_hidden_states=True)
        call = call.replaced(sources.open_inputs())

        with torch.inference_mode(False), torch.enable_grad(), sources.watching(), context:
            output = call.run(self.model)
        labels = labels_of(self.model)
        with torch.enable_grad():
            numbers = [read_target(output, target, labels, samples) for target in targets]
        self._check_forward(call, numbers, features, sources, context)
        nodes = census.check_reached(self.model, numbers, self.rules, context.coverage, self.trusted)
        if books is not None and self.rules.attention != "freeze":
            census.cancel_inside_softmax(nodes, books)
        embeddings = _embeddings(output) if EMBEDDINGS in self.places else {}
        cut = sources.leaves if INPUTS in self.places or not embeddings else embeddings
        shown = {**cut, **embeddings, **sources.passed}
        last = len(numbers) - 1
        try:
            return [self._split(context, number, cut, shown, keep=i < last) for i, number in enumerate(numbers)]
        except _NotFinite as place:
            if "*" in self.places:  # this is the search for the culprit
                raise
            raise Error(self._blame_backward(call, targets, str(place), numbers[0].dtype)) from None

    def _split(
        self, context: Propagation, number: Tensor, cut: Mapping[str, Tensor], shown: Mapping[str, Tensor], keep: bool
    ) -> Relevance:
        """Take one gradient and make of it relevance and a ledger."""
        # Half precision loses gradients below 6e-8: they travel scaled, as in mixed-precision training.
        scale = HALF_SCALE if number.dtype == torch.float16 else 1.0
        grads = context.gradient(in_float32(number).sum() * scale, list(shown.values()), keep=keep)
        if all(grad is None for grad in grads):
            raise Error(f"No relevance reaches {', '.join(map(repr, shown))}: the target does not depend on it.")
        values = {
            name: in_float32(x.detach()) * in_float32(torch.zeros_like(x) if grad is None else grad) / scale
            for (name, x), grad in zip(shown.items(), grads, strict=True)
        }
        output = in_float32(number.detach())
        for name, value in values.items():
            if not torch.isfinite(value).all():
                raise _NotFinite(name)
        ledger = None
        if context.books is not None:
            inputs = torch.stack([_by_sample(values[name], context.books) for name in cut]).sum(0)
            ledger = context.books.close(self.model, output, inputs.to(output), scale)
        return Relevance(output, values, ledger, context.coverage.meetings(self.model), self.rules)

    def _check_forward(
        self,
        call: Inputs,
        numbers: Sequence[Tensor],
        features: Mapping[str, Tensor],
        sources: Sources,
        context: Propagation,
    ) -> None:
        """Raise unless every number is finite and every feature reaches it."""
        if not all(bool(torch.isfinite(number).all()) for number in numbers):

            def again() -> None:
                with torch.no_grad():
                    call.run(self.model)

            where = first_bad_module(self.model, again)
            raise Error(f"The output has nan or inf. It arises first in module {where!r}.{_advice(numbers[0].dtype)}")
        for name in () if len(sources.leaves) and not sources.opens_inputs else features:
            if not any(leaf.partition("#")[0] == name for leaf in sources.leaves):
                raise Error(
                    f"{name} does not reach the output: the model never looked it up in a table of embeddings. If it "
                    "turns ids into numbers in another way, name the module that does: at='...'."
                )
        if not all(number.requires_grad for number in numbers):
            raise Error(
                f"{', '.join(map(repr, features))} does not reach the output under rules={self.rules.name!r}. "
                "If the model ends in a softmax, explain the scores before it."
            )

    def _blame_backward(self, call: Inputs, targets: Any, place: str, dtype: torch.dtype) -> str:
        """Name the module nearest to the output at which the gradient is no longer finite."""
        culprit = place
        search = _Run(self.model, self.rules, [INPUTS, "*"], False, self.trusted)
        try:
            search(call, targets)
        except _NotFinite as found:
            culprit = str(found)
        return f"The relevance has nan or inf. On its way from the output it arises first at {culprit!r}.{_advice(dtype)}"


def _advice(dtype: torch.dtype) -> str:
    if dtype == torch.float16:
        return " float16 overflows beyond 65504: use bfloat16 or float32."
    return ""


def _by_sample(values: Tensor, books: Books) -> Tensor:
    """Sum relevance over everything but the samples."""
    if books.samples == 1:
        return values.sum().reshape(1)
    if values.dim() <= books.batch_dim or values.shape[books.batch_dim] != books.samples:
        raise Unbatchable
    return values.movedim(books.batch_dim, 0).flatten(1).sum(1)


def _embeddings(output: Any) -> dict[str, Tensor]:
    """Return the first hidden states that a Hugging Face model reports: the output of its embedding blocks."""
    found = {}
    for part in ("", "encoder_", "decoder_"):
        states = getattr(output, f"{part}hidden_states", None)
        if states:
            found[f"{part}{EMBEDDINGS}"] = states[0]
    if not found or not all(isinstance(x, Tensor) and x.requires_grad for x in found.values()):
        raise Error(
            f"at='embeddings': {type(output).__name__} reports no hidden states. Name the module whose output it is."
        )
    return found


def _of_sample(target: Any, i: int, samples: int) -> Any:
    """Return what a target says about one sample."""
    if isinstance(target, Tensor):
        target = target.tolist()
    return target[i] if isinstance(target, list) and len(target) == samples else target


def _joined(parts: Sequence[Relevance], batch_dim: int) -> Relevance:
    """Put samples that were explained one at a time side by side."""
    first = parts[0]
    ledger = None
    if first.ledger is not None:
        ledgers = [part.ledger for part in parts if part.ledger is not None]
        owners = dict.fromkeys(owner for one in ledgers for owner in one.modules)
        ledger = Ledger(
            *(torch.cat([getattr(one, entry) for one in ledgers]) for entry in ("output", "inputs", "positions", "biases")),
            {owner: torch.cat([one.modules.get(owner, torch.zeros_like(one.output)) for one in ledgers]) for owner in owners},
        )
    values = {name: torch.cat([part.values[name] for part in parts], batch_dim) for name in first.values}
    output = torch.cat([part.output for part in parts])
    return Relevance(output, values, ledger, first.coverage, first.rules)
