"""The propagation context of an audit, which records the relevance that enters and leaves every operation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..engine.constants import Constant, Constants, Unbatchable
from ..engine.coverage import calling_module
from ..engine.operations import activations, arithmetic, attention, concat_and_fill, linear, norms
from ..engine.operations.elementwise import Trail, known_trail, set_trail
from ..engine.operations.tensors import in_float32, live, overwrite
from ..engine.rules import Rule, RuleSet
from ..engine.sample_rows import Batched
from . import heads
from .residuals import ResidualRecord, recorded

if TYPE_CHECKING:
    from ..engine.sources import Sources

_WATCHED = {
    name: kind
    for kind, part in (
        ("activation", activations),
        ("other", arithmetic),
        ("attention", attention),
        ("linear", linear),
        ("norm", norms),
        ("other", concat_and_fill),
    )
    for name in part.READERS
} | {
    **dict.fromkeys(("logsumexp", "log_softmax", "special_log_softmax"), "attention"),
    **dict.fromkeys(("std", "var", "norm", "linalg_vector_norm", "linalg_norm", "linalg_matrix_norm", "cdist"), "norm"),
}
"""Name of a function -> the kind of its calls, unless a rule determines another."""

_PRODUCTS = ("mul", "multiply", "__mul__", "__rmul__", "div", "divide", "true_divide", "__truediv__")
_SUMS = ("add", "__add__", "__radd__", "sub", "subtract", "__sub__", "rsub", "__rsub__")
_IN_PLACE = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__idiv__")
_OUT_OF_PLACE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("add_", "__iadd__"), torch.add),
    **dict.fromkeys(("sub_", "subtract_", "__isub__"), torch.sub),
    **dict.fromkeys(("mul_", "multiply_", "__imul__"), torch.mul),
    **dict.fromkeys(("div_", "divide_", "true_divide_", "__idiv__"), torch.div),
    **{f"{name}_": getattr(Tensor, name) for name in activations.READERS if hasattr(Tensor, f"{name}_")},
}
_CASTS = ("to", "type_as", "float", "double", "half", "bfloat16")
_MATRIX_PRODUCTS = ("matmul", "__matmul__", "bmm", "mm", "mv", "dot", "einsum")


@dataclass
class Record:
    """One call of an operation, with the relevance of each sample at its output and its inputs."""

    module: nn.Module | None
    function: str
    kind: str
    rule: str
    entries: list[Constant] = field(default_factory=list)
    entering: Tensor | None = None
    leaving: Tensor | None = None
    heads: dict[str, Tensor] = field(default_factory=dict)
    """For attention, the relevance of each sample and head, at "output" and at every input."""
    split: bool = False
    """Whether a product of queries and keys is used more than once, so that it belongs to no single attention map."""
    inside: bool = False
    """Whether it is a part of an attention other than its last call, the product with the values."""
    scores: Record | None = None
    """For a product of an attention map with values: the record of the product of queries and keys."""
    covariance: Callable[[Tensor], Tensor] | None = None
    """Gradient of the output -> the covariance term of Proposition 1 for each head."""

    def enter(self, relevance: Tensor) -> None:
        """Add relevance that enters at the output."""
        self.entering = relevance if self.entering is None else self.entering + relevance

    def leave(self, relevance: Tensor) -> None:
        """Add relevance that leaves at an input."""
        self.leaving = relevance if self.leaving is None else self.leaving + relevance


class Auditor(Batched):
    """A propagation context that records the relevance at the inputs and outputs of calls that can lose relevance.

    Each recorded call gets views of its inputs, so that the gradients of this call alone are observed. Calls that only
    rearrange values, and sums of tensors that depend on the input, conserve relevance and are not recorded.
    """

    def __init__(self, rules: RuleSet, constants: Constants, sources: Sources) -> None:
        super().__init__(rules, constants, sources)
        self.records: list[Record] = []
        self.residuals: list[ResidualRecord] = []
        self.finds_residual_sums = True
        self._met: list[tuple[str, str]] = []
        self._holders: dict[int, list[list[Tensor]]] = {}
        self._handles: list[RemovableHandle] = []

    def rule_for(self, kind: str, function: Callable[..., Any], path: str = "") -> Rule:
        """Record the rule that applies to the current call."""
        rule = super().rule_for(kind, function, path)
        self._met.append((kind, rule.name))
        return rule

    def met_residual_sum(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Measure a residual sum."""
        self.residuals.append(recorded(calling_module(), a, b, out, self.rules))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__"):
            return super().__torch_function__(func, types, args, kwargs)
        if name in _OUT_OF_PLACE and torch.is_grad_enabled() and live(args[0]) and _needs_watch(name, args[1:]):
            self._keep_values(args)  # computed out of place, where it can be recorded, then written to its tensor
            made = self.__torch_function__(_OUT_OF_PLACE[name], types, (args[0].clone(), *args[1:]), kwargs)
            heads.add_in_place(self.attributes, args)
            return overwrite(args[0], made)
        if name not in _WATCHED or not torch.is_grad_enabled() or _conserves(name, (*args, *kwargs.values())):
            if _works_in_place(name):
                self._keep_values(args)
            out = super().__torch_function__(func, types, args, kwargs)
            if name in _PRODUCTS:
                heads.pass_on(self.attributes, args, out)
            elif name in _SUMS:
                heads.share(args)
            elif name in _CASTS:
                heads.keep(self.attributes, args, out)
            return out
        given = args
        constants = self.constants
        assert constants is not None
        aliases = _Aliases(self)
        args, kwargs = aliases.put(args), {key: aliases.put(value) for key, value in kwargs.items()}
        booked, self._met = len(constants.entries), []
        out = super().__torch_function__(func, types, args, kwargs)
        if not live(out):
            return out
        kind, rule = self._met[0] if self._met else (_WATCHED[name], "")
        if name in _MATRIX_PRODUCTS and kind == "linear" and aliases.several:
            kind = "attention"
        record = Record(calling_module(), name, kind, rule, constants.entries[booked:])
        self.records.append(record)
        heads.note(self, record, given, kwargs, out)
        aliases.restore_trail(out)
        self._watch(record, out, aliases)
        return out

    def _watch(self, record: Record, out: Tensor, aliases: _Aliases) -> None:
        value = self._held(out)
        assert self.constants is not None
        alone = self.constants.samples == 1 == out.shape[0]
        by_head = record.kind == "attention" and out.dim() == 4 and (alone or self.constants.sample_axis(out) == 0)
        self._hook(out, lambda grad: self._entered(record, value, grad, by_head))
        for i, alias in enumerate(aliases.made):
            own = self._held(alias)
            key = f"input {i}" if by_head and alias.dim() == 4 and alias.shape[0] == out.shape[0] else ""

            def left(grad: Tensor, own: list[Tensor] = own, key: str = key) -> None:
                if key:
                    record.heads[key] = _dots(own[0], grad, 2)
                    record.leave(record.heads[key].sum(1))
                else:
                    record.leave(self._by_sample(own[0], grad))

            self._hook(alias, left)

    def _hook(self, x: Tensor, hook: Callable[[Tensor], None]) -> None:
        self._handles.append(x.register_hook(hook))  # type: ignore[no-untyped-call]

    def let_go(self) -> None:
        """Remove all hooks from the graph: through them, graph and ledger would keep each other alive."""
        for handle in self._handles:
            handle.remove()

    def _held(self, x: Tensor) -> list[Tensor]:
        """Return a list with a tensor's value, which is copied before a call changes it in place."""
        holder = [x.detach()]
        with contextlib.suppress(NotImplementedError):  # within vmap tensors have no storage
            self._holders.setdefault(x.untyped_storage().data_ptr(), []).append(holder)
        return holder

    def _keep_values(self, args: Sequence[Any]) -> None:
        """Copy the values of recorded tensors whose storage a call is about to change."""
        if args and isinstance(args[0], Tensor) and self._holders:
            for holder in self._holders.pop(args[0].untyped_storage().data_ptr(), []):
                holder[0] = holder[0].clone()

    def _entered(self, record: Record, held: list[Tensor], grad: Tensor, by_head: bool) -> None:
        if by_head:
            record.heads["output"] = _dots(held[0], grad, 2)
            record.enter(record.heads["output"].sum(1))
            if record.covariance is not None:
                record.heads["covariance"] = record.covariance(in_float32(grad))
        else:
            record.enter(self._by_sample(held[0], grad))

    def _by_sample(self, value: Tensor, grad: Tensor) -> Tensor:
        """Return the relevance of each sample: the sum of x * dF/dx."""
        constants = self.constants
        assert constants is not None
        axis = constants.sample_axis(grad)
        if isinstance(axis, Unbatchable):
            raise axis
        if axis is None:
            return _dots(value.reshape(constants.samples, -1), grad.reshape(constants.samples, -1), 1)
        return _dots(value.movedim(axis, 0), grad.movedim(axis, 0), 1)


class _Aliases:
    """Views of a call's arguments that depend on the input, and of the tensors they are elementwise functions of."""

    def __init__(self, context: Auditor) -> None:
        self._context = context
        self.made: list[Tensor] = []
        self._known: dict[int, Tensor] = {}
        self._originals: dict[int, Tensor] = {}
        self._given = 0

    @property
    def several(self) -> bool:
        """Whether more than one argument of the call depends on the input."""
        return self._given > 1

    def put(self, x: Any) -> Any:
        """Return an argument with the tensors that depend on the input replaced by views."""
        if isinstance(x, (tuple, list)):
            replaced = [self.put(item) for item in x]
            return replaced if isinstance(x, list) else tuple(replaced)
        if not live(x) or isinstance(x, nn.Parameter):
            return x
        self._given += 1
        return self._alias(x)

    def _alias(self, x: Tensor) -> Tensor:
        if id(x) not in self._known:
            alias = x.view_as(x)
            self._known[id(x)] = alias
            self._originals[id(alias)] = x
            self.made.append(alias)
            trail = known_trail(x)
            if trail is not None:
                set_trail(self._context, alias, Trail(self._alias(trail.source), trail.function, trail.linear))
        return self._known[id(x)]

    def restore_trail(self, out: Tensor) -> None:
        """Make the result an elementwise function of the original tensor again, instead of its view."""
        trail = out.__dict__.get("conserva_trail")
        if trail is not None and id(trail.source) in self._originals:
            original = self._originals[id(trail.source)]
            set_trail(self._context, out, Trail(original, trail.function, trail.linear))


def _needs_watch(name: str, others: Sequence[Any]) -> bool:
    """Return whether an in-place call can lose relevance: a sum with a constant, a product of two live tensors."""
    if _OUT_OF_PLACE[name] in (torch.add, torch.sub):
        return not all(map(live, others))
    return all(live(x) for x in others if isinstance(x, Tensor))


def _works_in_place(name: str) -> bool:
    return name in _IN_PLACE or (name.endswith("_") and not name.startswith("__"))


def _conserves(name: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether a call need not be recorded: it works in place, or is linear without a constant."""
    if _works_in_place(name):
        return True  # a view cannot be changed instead of its tensor; losses are in the ledger or recorded elsewhere
    flat = [item for x in arguments for item in (x if isinstance(x, (tuple, list)) else (x,))]
    alive = [x for x in flat if live(x) and not isinstance(x, nn.Parameter)]
    if not alive:
        return True
    if name in _SUMS or name in concat_and_fill.READERS:
        return len(alive) == len([x for x in flat if isinstance(x, Tensor)]) > 1
    if name in _PRODUCTS or name in ("neg", "negative"):
        return len(alive) < 2
    return name in _MATRIX_PRODUCTS and len(alive) < 2 and not any(isinstance(x, nn.Parameter) for x in flat)


def _dots(value: Tensor, grad: Tensor, axes: int) -> Tensor:
    """Return the sum of x * dF/dx over all but the first axes, without a product of the full size."""
    lead = grad.shape[:axes]
    x, g = (in_float32(tensor).reshape(lead.numel(), 1, -1) for tensor in (value, grad))
    sums = torch.bmm(x, g.transpose(1, 2))
    if not torch.isfinite(sums).all():  # -inf of a mask times a gradient of 0 counts as 0
        sums = torch.where(g == 0, torch.zeros_like(g), x * g).sum(-1)
    return sums.reshape(lead)
