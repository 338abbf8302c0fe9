"""One forward pass under rules, and a gradient for each target."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..errors import Error, NotApplicable
from . import checks, witness
from .autograd_graph import is_linear, nodes_behind
from .constants import Books, Unbatchable, joined_ledgers, owners_of, powers_of_two
from .context import Propagation
from .coverage import Meeting
from .forward import advice, forward
from .graph_leaves import refuse_unknown_leaves
from .inputs import Inputs, parameters_of
from .ledger import Ledger
from .memory import WHOLE, Keeper, Plan, leanest
from .operations.gated import was_passed_by
from .operations.tensors import in_float32
from .positions import only_explained
from .rules import RuleSet
from .sample_rows import Batched
from .sources import Sources
from .targets import Target, classes_of
from .untouched import untouched

INPUTS, EMBEDDINGS = "inputs", "embeddings"
EVERYWHERE = "*"

TOLERANCE = 1e-3
"""How much shares may differ that are the same but for rounding."""

LARGEST_GAP = 1e-3
"""The largest gap under rules that close, relative to all entries of the ledger, that is put down to rounding."""

HALF_SCALES = (256.0, 1.0)
"""Half precision loses gradients below 6e-8, so they travel scaled; one that overflows is tried as it is."""


@dataclass(frozen=True)
class Relevance:
    """How an output splits: relevance at every place asked for, the books, and what met which rule.

    Examples
    --------
    >>> task = conserva.load()
    >>> result = conserva.relevance(task.model, task.tokenizer("a joy.", return_tensors="pt"), "positive")
    >>> result.scores().shape, result.ledger.gap.shape
    (torch.Size([1, 5]), torch.Size([1]))
    """

    output: Tensor
    """The explained number of each sample."""
    values: Mapping[str, Tensor]
    """Place -> relevance of each element there, in float32 or wider."""
    logits: Tensor | None
    """A classifier's scores of every class, for each sample."""
    ledger: Ledger[Tensor] | None
    coverage: Sequence[Meeting]
    rules: RuleSet
    inputs: Collection[str] = ()
    """The explained inputs. Ids that a model looks up in several tables have several places: `input_ids#2`."""
    plan: str = WHOLE
    """How what the gradient needs was kept, at its leanest: "whole", "recompute" or "offload"."""
    modules: Mapping[str, Tensor] = field(default_factory=dict)
    """Module -> what its constants got: the ledger's positions and biases, by the module that owns the parameter."""

    def scores(self, place: str | None = None) -> Tensor:
        """Return the relevance of each feature: the sum over the last axis, at the one place or at a named one."""
        place = next(iter(self.values)) if place is None else place
        if place not in self.values:
            raise Error(f"place={place!r} was not asked for: there is {', '.join(map(repr, self.values))}.")
        again = [name for name in self.values if place in self.inputs and name.startswith(f"{place}#")]
        return torch.stack([self.values[name].sum(-1) for name in (place, *again)]).sum(0)

    @classmethod
    def side_by_side(cls, parts: Sequence[Relevance], batch_dim: int) -> Relevance:
        """Put samples that were explained one at a time side by side."""
        first = parts[0]
        ledgers = [part.ledger for part in parts if part.ledger is not None]
        values = {name: torch.cat([part.values[name] for part in parts], batch_dim) for name in first.values}
        output = torch.cat([part.output for part in parts])
        logits = None if first.logits is None else torch.cat([cast(Tensor, part.logits) for part in parts])
        ledger = joined_ledgers(ledgers) if ledgers else None
        owners = dict.fromkeys(owner for part in parts for owner in part.modules)
        modules = {
            owner: torch.cat([part.modules.get(owner, torch.zeros_like(part.output)) for part in parts])
            for owner in owners
        }
        plan = leanest([part.plan for part in parts])
        return cls(output, values, logits, ledger, first.coverage, first.rules, first.inputs, plan, modules)


@dataclass(frozen=True)
class Pass:
    """How to explain: with `call` and its targets it runs the model once and takes a gradient for each target."""

    model: nn.Module
    modules: Mapping[str, nn.Module]
    rules: RuleSet
    places: Sequence[str]
    keep_books: bool
    trusted: Collection[str]
    plan: Plan | None = None
    """How memory is used; without a plan everything is kept as torch keeps it."""

    def __call__(self, call: Inputs, targets: Sequence[Target | Sequence[Target] | Tensor]) -> list[Relevance]:
        splits = self._run(call, targets)
        for split in splits:
            if split.closed is not None:
                checks.require(split.closed, partial(_not_closed, split.relevance))
            blame = partial(self._blame, call, targets, split.places, split.finite, split.dtype)
            checks.require(split.finite.all(), blame)
        return [split.relevance for split in splits]

    def _run(self, call: Inputs, targets: Sequence[Target | Sequence[Target] | Tensor]) -> list[_Split]:
        features, samples = call.features(), call.samples()
        inside = [place for place in self.places if place not in (INPUTS, EMBEDDINGS)]
        sources = Sources(self.modules, features, len(inside) < len(self.places), inside, call.candidates())
        books = Books(samples, call.batch_dim, owners_of(self.modules)) if self.keep_books else None
        kind = Propagation if books is None or samples == 1 else Batched
        context = kind(self.rules, books, sources)
        context.is_lean = self.plan is not None
        if self.plan is not None:
            context.keeper = Keeper(self.plan, device_of(self.model, call))
        if EMBEDDINGS in self.places:
            call = _report_states(self.model, call)
        call, targets = only_explained(self.model, call.without_cache(self.model), targets)

        output, numbers = forward(self.model, call, sources, context, targets)
        nodes = self._checked(call, targets, numbers, context)
        refuse_unknown_leaves(nodes, sources.leaves.values(), self.modules)
        if books is not None and not self.rules.attention.freezes:
            witness.cancel_inside_softmax(nodes, context, books)
        embeddings = _embeddings(output) if EMBEDDINGS in self.places else {}
        if any(map(was_passed_by, embeddings.values())):
            # Which was not known before. What the first run kept must not lie beside what the second keeps.
            del context, sources, books, output, numbers, nodes, embeddings
            return replace(self, plan=None)._run(call, targets)
        cut = sources.leaves if INPUTS in self.places or not embeddings else embeddings
        if books is not None and cut is embeddings:
            for x in cut.values():
                books.cancel_inside(x)
        shown = {**cut, **embeddings, **sources.passed}
        last = len(numbers) - 1
        logits = classes_of(output, samples)
        return [self._split(context, number, logits, cut, shown, i < last) for i, number in enumerate(numbers)]

    def _checked(
        self, call: Inputs, targets: Sequence[Target | Sequence[Target] | Tensor], numbers: Any, context: Propagation
    ) -> list[Any]:
        """Return the nodes of the graph. What is refused is looked for in a second pass, which names the module."""
        try:
            return witness.check(self.model, numbers, context, self.trusted)
        except witness.Refused:
            refuse_unknown_leaves(nodes_behind(numbers), cast(Sources, context.sources).leaves.values(), self.modules)
            inside = [place for place in self.places if place not in (INPUTS, EMBEDDINGS)]
            sources = Sources(self.modules, call.features(), len(inside) < len(self.places), inside, call.candidates())
            search = Propagation(self.rules, Books(call.samples(), call.batch_dim), sources)
            search.calls = {}
            _, again = forward(self.model, call, sources, search, targets)
            witness.check(self.model, again, search, self.trusted)
            raise

    def _split(
        self,
        context: Propagation,
        number: Tensor,
        logits: Tensor | None,
        cut: Mapping[str, Tensor],
        shown: Mapping[str, Tensor],
        keep: bool,
    ) -> _Split:
        """Take one gradient and make relevance and a ledger of it."""
        sources = cast(Sources, context.sources)
        check = context.books is not None and context.books.in_doubt
        half = torch.float16 in (number.dtype, *(x.dtype for x in shown.values()))
        scales = HALF_SCALES if half else (1.0,)
        for scale in scales:
            last = scale == scales[-1]
            grads = context.gradient(
                in_float32(number).sum() * scale, list(shown.values()), keep=keep or check or not last
            )
            values = {
                name: in_float32(x.detach()) * in_float32(torch.zeros_like(x) if grad is None else grad)
                for (name, x), grad in zip(shown.items(), grads, strict=True)
            }
            values = {name: sources.placed(name, value) for name, value in values.items()}
            if scale != 1:
                values = {name: value / scale for name, value in values.items()}
            finite = checks.all_finite(list(values.values()))
            if last or finite.all():
                break
            if context.books is not None:
                context.books.clear()
        if all(grad is None for grad in grads):
            raise Error(f"No relevance reaches {', '.join(map(repr, shown))}: the target does not depend on it.")
        output, ledger, modules = in_float32(number.detach()), None, dict[str, Tensor]()
        if context.books is not None:
            carried = torch.stack([_by_sample(values[name], context.books) for name in cut]).sum(0)
            ledger, modules = context.books.close(self.modules, output, carried.to(output), scale)
            if check:
                self._check_samples(context, number, cut, [ledger.inputs, *modules.values()], scale, keep)
        met, inputs = context.coverage.meetings(self.modules), sources.inputs
        plan = WHOLE if context.keeper is None else context.keeper.leanest
        found = Relevance(output, values, logits, ledger, met, self.rules, inputs, plan, modules)
        return _Split(found, finite, number.dtype, self._closed(context, found, number))

    def _closed(self, context: Propagation, found: Relevance, number: Tensor) -> Tensor | None:
        """Return whether a ledger that must close does so, up to rounding; None where it need not.

        A target may add a constant, or take a logarithm; and half precision rounds too much to tell.
        """
        ledger = found.ledger
        if ledger is None or not self.rules.closes or number.dtype not in (torch.float32, torch.float64):
            return None
        halves = (torch.float16, torch.bfloat16)
        if any(x.dtype in halves for x in self.model.parameters()) or torch.is_autocast_enabled(number.device.type):
            return None
        if not all(map(is_linear, context.target_nodes)):
            return None
        entries = (found.output, ledger.inputs, ledger.positions, ledger.biases)
        size = torch.stack([entry.abs() for entry in entries]).sum(0)
        return (ledger.gap.abs() <= LARGEST_GAP * size).all()

    def _check_samples(
        self,
        context: Propagation,
        number: Tensor,
        cut: Mapping[str, Tensor],
        found: Sequence[Tensor],
        scale: float,
        keep: bool,
    ) -> None:
        """Take the gradient again, each sample's times a factor of its own: every share must grow by its factor.

        Shapes may tell wrongly where the samples lie, and no shape tells that.
        """
        books, sources = context.books, cast(Sources, context.sources)
        if books is None or (number.is_cuda and torch.cuda.is_current_stream_capturing()):
            return  # what is recorded was checked before
        once = torch.stack(list(found))
        factors = powers_of_two(len(number), once)
        weighted = (in_float32(number) * factors).sum() * scale
        grads = context.gradient(weighted, list(cut.values()), keep=keep)
        shares = [
            _by_sample(sources.placed(name, in_float32(x.detach()) * in_float32(grad)), books)
            for (name, x), grad in zip(cut.items(), grads, strict=True)
            if grad is not None
        ]
        carried = torch.stack(shares).sum(0).to(once) / scale
        _, modules = books.close(self.modules, once[0], carried, scale)
        twice = torch.stack([carried, *modules.values()])
        difference = (twice - once * factors).abs().amax(1)
        if bool((difference > TOLERANCE * (once * factors).abs().amax(1)).any()):
            raise Unbatchable

    def _blame(self, call: Inputs, targets: Any, where: Sequence[str], finite: Tensor, dtype: torch.dtype) -> Error:
        """Name the place nearest to the output at which the relevance is no longer finite."""
        search = Pass(self.model, self.modules, self.rules, [INPUTS, EVERYWHERE], False, self.trusted, self.plan)
        with untouched(self.model), torch.inference_mode(False), torch.enable_grad():
            found = [(split.places, split.finite) for split in search._run(call, targets)]
        bad = [
            [place for place, passed in zip(places, flags.tolist(), strict=True) if not passed]
            for places, flags in (*found, (where, finite))
        ]
        nearest = next(places[-1] for places in bad if places)  # the last in the forward pass
        return Error(
            f"The relevance has nan or inf. On its way from the output it arises first at {nearest!r}.{advice(dtype)}"
        )


def _not_closed(found: Relevance) -> Error:
    gap = None if found.ledger is None else float(found.ledger.gap.abs().max())
    return Error(
        f"The ledger does not close under rules={found.rules.name!r}: the gap is {gap:.3g} for an output of "
        f"{float(found.output.abs().max()):.3g}, so a call of the model was not understood. `conserva audit` says in "
        "which module relevance is lost; rules that do not promise to close, such as 'ah+ln', give an answer."
    )


class _Split(NamedTuple):
    """What one gradient gave, and for each place whether it is finite."""

    relevance: Relevance
    finite: Tensor
    dtype: torch.dtype
    closed: Tensor | None = None
    """Whether the ledger closes, where it must."""

    @property
    def places(self) -> tuple[str, ...]:
        return tuple(self.relevance.values)


def device_of(model: nn.Module, call: Inputs) -> torch.device:
    """Return where the model computes: on the first GPU that holds a part of it, or where its first part lies."""
    given = next(iter(call.features().values())).device
    first = next((one.device for one in model.parameters()), given)
    if first.type == "cuda" or not torch.cuda.is_available():
        return first
    return next((one.device for one in model.parameters() if one.is_cuda), first)


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
        raise NotApplicable(
            f"at='embeddings': {type(output).__name__} reports no hidden states that all depend on the inputs. Name "
            "the module whose output it is."
        )
    return found


def _report_states(model: nn.Module, call: Inputs) -> Inputs:
    """Return the call with the hidden states asked for, as Hugging Face models take it."""
    parameters = parameters_of(model).values()
    if not any(one.name == "output_hidden_states" or one.kind is one.VAR_KEYWORD for one in parameters):
        raise NotApplicable(
            f"at='embeddings': {type(model).__name__} takes no output_hidden_states, as Hugging Face models do. Name "
            "the module whose output it is."
        )
    return call.with_(output_hidden_states=True)
