"""One forward pass under rules, and one backward pass for each target."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..errors import Error, NotApplicable
from . import checks, graph_check
from .autograd_graph import is_linear, leaves_of, nodes_behind
from .constants import Constants, Unbatchable, joined_ledgers, powers_of_two
from .context import Propagation
from .coverage import CoverageEntry
from .forward import advice, forward
from .graph_leaves import refuse_unknown_leaves
from .inputs import Inputs, parameters_of
from .ledger import Ledger
from .logits_to_keep import keep_explained_logits
from .memory import WHOLE, Keeper, Plan, leanest
from .module_tree import Modules
from .operations.gated import is_bypassed
from .operations.tensors import in_float32
from .rules import RuleSet
from .sample_rows import Batched
from .sources import Sources
from .targets import Target, classes_of
from .untouched import untouched

INPUTS, EMBEDDINGS = "inputs", "embeddings"
EVERYWHERE = "*"

TOLERANCE = 1e-3
"""The relative difference between two computations of a share that is attributed to rounding."""

LARGEST_GAP = 1e-3
"""The largest gap that is attributed to rounding, relative to the entries of a ledger that must close."""

LARGEST_ERROR = 1e-5
"""The same relative to the absolute relevance of all elements. Models in float64 may compute norms in float32."""

HALF_SCALES = (256.0, 1.0)
"""Scales of float16 gradients, in the order tried: unscaled ones below 6e-8 underflow, scaled ones may overflow."""


@dataclass(frozen=True, repr=False)
class Relevance:
    """The result of `conserva.relevance`: relevance at every requested site, the ledger, and the coverage of rules.

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
    """Site -> relevance of each element there, in float32 or wider. A site is an input, "embeddings" or a module."""
    logits: Tensor | None
    """The logits of a classifier, samples x classes; None for other models."""
    ledger: Ledger[Tensor] | None
    coverage: Sequence[CoverageEntry]
    rules: RuleSet
    inputs: Collection[str] = ()
    """The explained inputs. Ids that a model looks up several times have several sites: `input_ids#2`."""
    plan: str = WHOLE
    """The memory plan that was used: "whole", "recompute" or "offload", whichever kept the least on the device."""
    modules: Mapping[str, Tensor] = field(default_factory=dict)
    """Module -> the relevance of its constants: the ledger's positions and biases, by the owner of the parameter."""

    def __repr__(self) -> str:
        shapes = ", ".join(f"{site}: {tuple(value.shape)}" for site, value in self.values.items())
        return f"Relevance(rules={self.rules.name!r}, samples={len(self.output)}, values={{{shapes}}})"

    def scores(self, place: str | None = None) -> Tensor:
        """Return the relevance of each feature: the sum over the last dimension.

        Parameters
        ----------
        place
            A key of `values`; None for the first.
        """
        place = next(iter(self.values)) if place is None else place
        if place not in self.values:
            raise Error(f"place={place!r} has no relevance here; available: {', '.join(map(repr, self.values))}.")
        again = [name for name in self.values if place in self.inputs and name.startswith(f"{place}#")]
        return torch.stack([self.values[name].sum(-1) for name in (place, *again)]).sum(0)

    @classmethod
    def side_by_side(cls, parts: Sequence[Relevance], batch_dim: int) -> Relevance:
        """Concatenate the results of samples that were explained one at a time."""
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
    """How to explain. Called with inputs and targets, it runs one forward pass, and a backward pass for each target."""

    model: nn.Module
    modules: Modules
    rules: RuleSet
    sites: Sequence[str]
    """Where relevance is requested: "inputs", "embeddings", names and patterns of modules."""
    keep_ledger: bool
    trusted: Collection[str]
    plan: Plan | None = None
    """The memory plan; without one, torch saves all tensors as usual."""

    def __call__(self, call: Inputs, targets: Sequence[Target | Sequence[Target] | Tensor]) -> list[Relevance]:
        splits = self._run(call, targets)
        for split in splits:
            not_finite = partial(self._not_finite, call, targets, split.sites, split.finite, split.dtype)
            checks.require(split.finite.all(), not_finite)
            if split.closed is not None:
                checks.require(split.closed, partial(_not_closed, split.relevance, split.dtype, call.batch_dim))
        return [split.relevance for split in splits]

    def _run(self, call: Inputs, targets: Sequence[Target | Sequence[Target] | Tensor]) -> list[_Split]:
        features, samples = call.features(), call.samples()
        inside = [site for site in self.sites if site not in (INPUTS, EMBEDDINGS)]
        sources = Sources(self.modules, features, len(inside) < len(self.sites), inside, call.candidates())
        constants = Constants(samples, call.batch_dim, self.modules) if self.keep_ledger else None
        kind = Propagation if constants is None or samples == 1 else Batched
        context = kind(self.rules, constants, sources)
        context.is_lean = self.plan is not None
        if self.plan is not None:
            context.keeper = Keeper(self.plan, device_of(self.model, call))
        if EMBEDDINGS in self.sites:
            call = _report_states(self.model, call)
        call, targets = keep_explained_logits(self.model, call.without_cache(self.model), targets)

        output, numbers = forward(self.model, call, sources, context, targets)
        nodes = self._checked(call, targets, numbers, context)
        self._refuse_unknown_leaves(nodes, context)
        if constants is not None:
            constants.cancel_unreached(nodes)
        if constants is not None and not self.rules.attention.freezes:
            graph_check.cancel_inside_softmax(nodes, context, constants)
        embeddings = _embeddings(output) if EMBEDDINGS in self.sites else {}
        if any(map(is_bypassed, embeddings.values())):
            # Known only after the run. Its saved tensors are freed before those of the second run are allocated.
            del context, sources, constants, output, numbers, nodes, embeddings
            return replace(self, plan=None)._run(call, targets)
        cut = sources.leaves if INPUTS in self.sites or not embeddings else embeddings
        if constants is not None and cut is embeddings:
            constants.cancel(set(nodes_behind(list(cut.values()))))  # the relevance of the embeddings includes theirs
        shown = {**cut, **embeddings, **sources.module_outputs}
        last = len(numbers) - 1
        logits = classes_of(output, samples)
        return [self._split(context, number, logits, cut, shown, i < last) for i, number in enumerate(numbers)]

    def _checked(
        self, call: Inputs, targets: Sequence[Target | Sequence[Target] | Tensor], numbers: Any, context: Propagation
    ) -> list[Any]:
        """Check the graph and return its nodes. If a node is refused, a second pass finds the module that made it."""
        try:
            return graph_check.check(self.model, numbers, context, self.trusted)
        except graph_check.Refused:
            self._refuse_unknown_leaves(nodes_behind(numbers), context)
            inside = [site for site in self.sites if site not in (INPUTS, EMBEDDINGS)]
            sources = Sources(self.modules, call.features(), len(inside) < len(self.sites), inside, call.candidates())
            recording = Propagation(self.rules, Constants(call.samples(), call.batch_dim), sources)
            recording.calls = {}
            _, again = forward(self.model, call, sources, recording, targets)
            graph_check.check(self.model, again, recording, self.trusted)
            raise

    def _refuse_unknown_leaves(self, nodes: Sequence[Any], context: Propagation) -> None:
        of_constants = [] if context.constants is None else context.constants.leaves
        known = [*cast(Sources, context.sources).leaves.values(), *of_constants]
        refuse_unknown_leaves(leaves_of(nodes), known, self.modules)

    def _split(
        self,
        context: Propagation,
        number: Tensor,
        logits: Tensor | None,
        cut: Mapping[str, Tensor],
        shown: Mapping[str, Tensor],
        keep: bool,
    ) -> _Split:
        """Take one gradient, and compute relevance and the ledger from it."""
        sources = cast(Sources, context.sources)
        check = context.constants is not None and context.constants.in_doubt
        edges = [] if context.constants is None else context.constants.edges
        half = torch.float16 in (number.dtype, *(x.dtype for x in shown.values()))
        scales = HALF_SCALES if half else (1.0,)
        for scale in scales:
            last = scale == scales[-1]
            grads = context.gradient(
                in_float32(number).sum() * scale, [*shown.values(), *edges], keep=keep or check or not last
            )
            grads, at_constants = grads[: len(shown)], grads[len(shown) :]
            values = {
                name: in_float32(x.detach()) * in_float32(torch.zeros_like(x) if grad is None else grad)
                for (name, x), grad in zip(shown.items(), grads, strict=True)
            }
            values = {name: sources.in_input_shape(name, value) for name, value in values.items()}
            if scale != 1:
                values = {name: value / scale for name, value in values.items()}
            finite = checks.all_finite(list(values.values()))
            if last or finite.all():
                break
            if context.constants is not None:
                context.constants.clear()
        if all(grad is None for grad in grads):
            raise Error(f"No relevance reaches {', '.join(map(repr, shown))}: the target does not depend on it.")
        output, ledger, modules = in_float32(number.detach()), None, dict[str, Tensor]()
        if context.constants is not None:
            carried = torch.stack([_by_sample(values[name], context.constants) for name in cut]).sum(0)
            context.constants.weigh(at_constants)
            ledger, modules = context.constants.close(output, carried.to(output), scale)
            if check:
                self._check_samples(context, number, cut, [ledger.inputs, *modules.values()], scale, keep)
        coverage, inputs = context.coverage.entries(self.modules), sources.inputs
        plan = WHOLE if context.keeper is None else context.keeper.leanest
        relevance = Relevance(output, values, logits, ledger, coverage, self.rules, inputs, plan, modules)
        return _Split(relevance, finite, number.dtype, self._closed(context, relevance, number))

    def _closed(self, context: Propagation, relevance: Relevance, number: Tensor) -> Tensor | None:
        """Return whether a ledger closes up to rounding, or is finite where it need not close; None without a ledger.

        It need not if the target adds a constant or takes a logarithm, nor in half precision, which rounds too much.
        """
        ledger = relevance.ledger
        if ledger is None:
            return None
        dtypes = {number.dtype, *self.modules.dtypes}
        is_half = not dtypes.isdisjoint((torch.float16, torch.bfloat16))
        is_half = is_half or torch.is_autocast_enabled(number.device.type)
        if is_half or not self.rules.closes or not all(map(is_linear, context.target_nodes)):
            return ledger.gap.isfinite().all()
        sizes = torch.stack([ledger.gap, ledger.inputs, ledger.positions, ledger.biases]).abs()
        return ((sizes[0] <= LARGEST_GAP * sizes.sum(0)) & (sizes[0] < math.inf)).all()

    def _check_samples(
        self,
        context: Propagation,
        number: Tensor,
        cut: Mapping[str, Tensor],
        found: Sequence[Tensor],
        scale: float,
        keep: bool,
    ) -> None:
        """Take the gradient again, multiplied by another factor for each sample: all its shares must scale by it.

        This verifies that the batch dimension of each tensor was inferred correctly from its shape.
        """
        constants, sources = context.constants, cast(Sources, context.sources)
        if constants is None or (number.is_cuda and torch.cuda.is_current_stream_capturing()):
            return  # a computation is checked before it is recorded as a CUDA graph
        once = torch.stack(list(found))
        factors = powers_of_two(len(number), once)
        weighted = (in_float32(number) * factors).sum() * scale
        grads = context.gradient(weighted, [*cut.values(), *constants.edges], keep=keep)
        constants.weigh(grads[len(cut) :])
        shares = [
            _by_sample(sources.in_input_shape(name, in_float32(x.detach()) * in_float32(grad)), constants)
            for (name, x), grad in zip(cut.items(), grads[: len(cut)], strict=True)
            if grad is not None
        ]
        carried = torch.stack(shares).sum(0).to(once) / scale
        _, modules = constants.close(once[0], carried, scale)
        twice = torch.stack([carried, *modules.values()])
        difference = (twice - once * factors).abs().amax(1)
        if bool((difference > TOLERANCE * (once * factors).abs().amax(1)).any()):
            raise Unbatchable

    def _not_finite(
        self, call: Inputs, targets: Any, sites: Sequence[str], finite: Tensor, dtype: torch.dtype
    ) -> Error:
        """Return the error for relevance that is not finite: it names the site nearest to the output."""
        search = Pass(self.model, self.modules, self.rules, [INPUTS, EVERYWHERE], False, self.trusted, self.plan)
        with untouched(self.model), torch.inference_mode(False), torch.enable_grad():
            flags = [(split.sites, split.finite) for split in search._run(call, targets)]
        not_finite = [
            [site for site, passed in zip(names, each.tolist(), strict=True) if not passed]
            for names, each in (*flags, (sites, finite))
        ]
        nearest = next(names[-1] for names in not_finite if names)  # the last in the forward pass
        return Error(
            f"The relevance has nan or inf. In the backward pass it first occurs at {nearest!r}.{advice(dtype)}"
        )


def _not_closed(result: Relevance, dtype: torch.dtype, batch_dim: int) -> Error | None:
    """Return the error for a ledger that does not close, or None if that is rounding: see `_is_rounding`."""
    ledger = cast(Ledger[Tensor], result.ledger)
    gap = float(ledger.gap.abs().max())
    if not math.isfinite(gap):
        found = [name for name, share in result.modules.items() if not share.isfinite().all()]
        where = f": the constants of {', '.join(map(repr, found[:3]))}" if found else ""
        return Error(f"The ledger under rules={result.rules.name!r} has nan or inf{where}.{advice(dtype)}")
    if _is_rounding(result, ledger, batch_dim):
        return None
    return Error(
        f"The ledger does not close under rules={result.rules.name!r}: the gap is {gap:.3g} for an output of "
        f"{float(result.output.abs().max()):.3g}, so an operation of the model is not handled correctly. `conserva "
        "audit` shows the module where relevance is lost; rule sets whose ledger need not close, such as 'ah+ln', work."
    )


def _is_rounding(result: Relevance, ledger: Ledger[Tensor], batch_dim: int) -> bool:
    """Return whether the gap of every sample is small against the absolute relevance of all its elements.

    Where positive and negative relevance cancel, the entries of a ledger are small, and rounding errors are not.
    """
    samples = len(result.output)
    sizes = [
        x.movedim(batch_dim, 0).reshape(samples, -1).abs().sum(1)
        for x in result.values.values()
        if samples == 1 or (x.dim() > batch_dim and x.shape[batch_dim] == samples)
    ]
    if not sizes:
        return False
    size = torch.stack([each.to(ledger.gap) for each in sizes]).amax(0)
    allowed = torch.maximum(LARGEST_GAP * ledger.size, LARGEST_ERROR * size)
    return bool((ledger.gap.abs() <= allowed).all())


class _Split(NamedTuple):
    """The result of one gradient, and for each site whether its relevance is finite."""

    relevance: Relevance
    finite: Tensor
    dtype: torch.dtype
    closed: Tensor | None = None
    """Whether the ledger closes if it must, and otherwise whether it is finite."""

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self.relevance.values)


def device_of(model: nn.Module, call: Inputs) -> torch.device:
    """Return the device that the model computes on: the first GPU with a parameter, or that of the first parameter."""
    given = next(iter(call.features().values())).device
    first = next((parameter.device for parameter in model.parameters()), given)
    if first.type == "cuda" or not torch.cuda.is_available():
        return first
    return next((parameter.device for parameter in model.parameters() if parameter.is_cuda), first)


def _by_sample(values: Tensor, constants: Constants) -> Tensor:
    """Sum relevance over all dimensions but that of the samples."""
    if constants.samples == 1:
        return values.sum().reshape(1)
    if values.dim() <= constants.batch_dim or values.shape[constants.batch_dim] != constants.samples:
        raise Unbatchable
    return values.movedim(constants.batch_dim, 0).reshape(constants.samples, -1).sum(1)


def _embeddings(output: Any) -> dict[str, Tensor]:
    """Return the first hidden states in a Hugging Face model's output: those of its embedding blocks."""
    embeddings = {}
    for part in ("", "encoder_", "decoder_"):
        states = getattr(output, f"{part}hidden_states", None)
        if states:
            embeddings[f"{part}{EMBEDDINGS}"] = states[0]
    if not embeddings or not all(isinstance(x, Tensor) and x.requires_grad for x in embeddings.values()):
        raise NotApplicable(
            f"at='embeddings': {type(output).__name__} has no hidden states that depend on the inputs. Pass the name "
            "of the embedding module as at='...'."
        )
    return embeddings


def _report_states(model: nn.Module, call: Inputs) -> Inputs:
    """Return the call with `output_hidden_states=True`, an argument of Hugging Face models."""
    parameters = parameters_of(model).values()
    if not any(p.name == "output_hidden_states" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise NotApplicable(
            f"at='embeddings': {type(model).__name__} does not take output_hidden_states, as Hugging Face models do. "
            "Pass the name of the embedding module as at='...'."
        )
    return call.with_(output_hidden_states=True)
