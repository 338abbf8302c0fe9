"""The context of an audit: every operation is watched for the relevance that it takes in and gives on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..engine.constants import Books, Entry, Unbatchable
from ..engine.coverage import calling_module
from ..engine.operations import activations, arithmetic, attention, concat_and_fill, linear, norms
from ..engine.operations.elementwise import Trail, known_trail, set_trail
from ..engine.operations.tensors import in_float32, live, overwrite
from ..engine.rules import Rule, RuleSet
from ..engine.sample_rows import Batched
from . import heads

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
"""Name of a call -> its kind, unless the rule that it meets says otherwise."""

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
    """One call: what it is, and the relevance seen at both its ends, for each sample."""

    module: nn.Module | None
    function: str
    kind: str
    rule: str
    entries: list[Entry] = field(default_factory=list)
    entering: Tensor | None = None
    leaving: Tensor | None = None
    heads: dict[str, Tensor] = field(default_factory=dict)
    """Relevance of each sample and head at the output and at every factor, where the call is attention."""
    split: bool = False
    """Whether a product of queries and keys went several ways, so that no one map tells what it gives on."""
    inside: bool = False
    """Whether it is a part of an attention, and not the product with the values that ends it."""
    scores: Record | None = None
    """For the product of a map and its values: that of the queries and the keys."""
    covariance: Callable[[Tensor], Tensor] | None = None
    """What Proposition 1 says about each head, given the gradient of its output."""

    def enter(self, relevance: Tensor) -> None:
        """Add relevance that reached the output."""
        self.entering = relevance if self.entering is None else self.entering + relevance

    def leave(self, relevance: Tensor) -> None:
        """Add relevance that went on to an input."""
        self.leaving = relevance if self.leaving is None else self.leaving + relevance


class Auditor(Batched):
    """A rule set at work, with every call that may lose relevance watched at both ends.

    Inputs of a call are given to it as aliases of their own, so that what flows back through this call alone is seen.
    Calls that only move values, and sums of live tensors, lose nothing and are left alone.
    """

    def __init__(self, rules: RuleSet, books: Books, sources: Sources) -> None:
        super().__init__(rules, books, sources)
        self.records: list[Record] = []
        self._met: list[tuple[str, str]] = []
        self._holders: dict[int, list[list[Tensor]]] = {}
        self._handles: list[RemovableHandle] = []

    def rule_for(self, kind: str, function: Callable[..., Any], path: str = "") -> Rule:
        """Note which rule the call at work met."""
        rule = super().rule_for(kind, function, path)
        self._met.append((kind, rule.name))
        return rule

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__"):
            return super().__torch_function__(func, types, args, kwargs)
        if name in _OUT_OF_PLACE and torch.is_grad_enabled() and live(args[0]) and _needs_watch(name, args[1:]):
            self._keep_values(args)  # made beside, where it can be watched, and stored in its tensor's place
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
        books = self.books
        assert books is not None
        aliases = _Aliases(self)
        args, kwargs = aliases.put(args), {key: aliases.put(value) for key, value in kwargs.items()}
        booked, self._met = len(books.entries), []
        out = super().__torch_function__(func, types, args, kwargs)
        if not live(out):
            return out
        kind, rule = self._met[0] if self._met else (_WATCHED[name], "")
        if name in _MATRIX_PRODUCTS and kind == "linear" and aliases.several:
            kind = "attention"
        record = Record(calling_module(), name, kind, rule, books.entries[booked:])
        self.records.append(record)
        heads.note(self, record, given, kwargs, out)
        aliases.restore_trail(out)
        self._watch(record, out, aliases)
        return out

    def _watch(self, record: Record, out: Tensor, aliases: _Aliases) -> None:
        value = self._held(out)
        assert self.books is not None
        alone = self.books.samples == 1 == out.shape[0]
        by_head = record.kind == "attention" and out.dim() == 4 and (alone or self.books.sample_axis(out) == 0)
        self._hook(out, lambda grad: self._entered(record, value, grad, by_head))
        for i, alias in enumerate(aliases.made):
            own = self._held(alias)
            place = f"input {i}" if by_head and alias.dim() == 4 and alias.shape[0] == out.shape[0] else ""

            def left(grad: Tensor, own: list[Tensor] = own, place: str = place) -> None:
                if place:
                    record.heads[place] = _dots(own[0], grad, 2)
                    record.leave(record.heads[place].sum(1))
                else:
                    record.leave(self._by_sample(own[0], grad))

            self._hook(alias, left)

    def _hook(self, x: Tensor, hook: Callable[[Tensor], None]) -> None:
        self._handles.append(x.register_hook(hook))  # type: ignore[no-untyped-call]

    def let_go(self) -> None:
        """Take all hooks off the graph, which they would keep alive: they know the books, which know the graph."""
        for handle in self._handles:
            handle.remove()

    def _held(self, x: Tensor) -> list[Tensor]:
        """Return a holder of a tensor's value, which is copied before a call changes it in place."""
        holder = [x.detach()]
        with contextlib.suppress(NotImplementedError):  # within vmap there is no memory to be seen
            self._holders.setdefault(x.untyped_storage().data_ptr(), []).append(holder)
        return holder

    def _keep_values(self, args: Sequence[Any]) -> None:
        """Copy the values of watched tensors whose memory a call is about to change."""
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
        books = self.books
        assert books is not None
        axis = books.sample_axis(grad)
        if isinstance(axis, Unbatchable):
            raise axis
        if axis is None:
            return _dots(value.reshape(books.samples, -1), grad.reshape(books.samples, -1), 1)
        return _dots(value.movedim(axis, 0), grad.movedim(axis, 0), 1)


class _Aliases:
    """Other names for the live tensors among a call's arguments, and for what they are elementwise functions of."""

    def __init__(self, context: Auditor) -> None:
        self._context = context
        self.made: list[Tensor] = []
        self._known: dict[int, Tensor] = {}
        self._originals: dict[int, Tensor] = {}
        self._given = 0

    @property
    def several(self) -> bool:
        """Whether the call has more than one live argument."""
        return self._given > 1

    def put(self, x: Any) -> Any:
        """Return an argument with its live tensors replaced."""
        if isinstance(x, (tuple, list)):
            replaced = [self.put(one) for one in x]
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
        """Let the result be a function of the original again, and not of its alias."""
        trail = out.__dict__.get("conserva_trail")
        if trail is not None and id(trail.source) in self._originals:
            original = self._originals[id(trail.source)]
            set_trail(self._context, out, Trail(original, trail.function, trail.linear))


def _needs_watch(name: str, others: Sequence[Any]) -> bool:
    """Tell whether a call in place on a live tensor may lose relevance: a sum with a constant, a product."""
    if _OUT_OF_PLACE[name] in (torch.add, torch.sub):
        return not all(map(live, others))
    return all(live(one) for one in others if isinstance(one, Tensor))


def _works_in_place(name: str) -> bool:
    return name in _IN_PLACE or (name.endswith("_") and not name.startswith("__"))


def _conserves(name: str, arguments: tuple[Any, ...]) -> bool:
    """Tell whether a call loses nothing under any rule: it works in place, or is linear without a constant."""
    if _works_in_place(name):
        return True  # an alias cannot be changed in its tensor's place; what these lose is booked or seen further up
    flat = [one for x in arguments for one in (x if isinstance(x, (tuple, list)) else (x,))]
    alive = [one for one in flat if live(one) and not isinstance(one, nn.Parameter)]
    if not alive:
        return True
    if name in _SUMS or name in concat_and_fill.READERS:
        return len(alive) == len([one for one in flat if isinstance(one, Tensor)]) > 1
    if name in _PRODUCTS or name in ("neg", "negative"):
        return len(alive) < 2
    return name in _MATRIX_PRODUCTS and len(alive) < 2 and not any(isinstance(one, nn.Parameter) for one in flat)


def _dots(value: Tensor, grad: Tensor, axes: int) -> Tensor:
    """Return the sum of x * dF/dx over all but the first axes, in one pass over both."""
    lead = grad.shape[:axes]
    x, g = (in_float32(one).reshape(lead.numel(), 1, -1) for one in (value, grad))
    found = torch.bmm(x, g.transpose(1, 2))
    if not torch.isfinite(found).all():  # a mask's -inf times the gradient 0 is 0
        found = torch.where(g == 0, torch.zeros_like(g), x * g).sum(-1)
    return found.reshape(lead)
