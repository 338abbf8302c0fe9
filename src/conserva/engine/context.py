"""The context that applies a rule set to the torch calls a model makes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from ..errors import Error, NotApplicable
from .coverage import Coverage, calling_module
from .held import Held, with_value
from .interrupts import came, handle
from .operations.elementwise import Functions, Limits, Ratio, made_beside
from .operations.lookup import call_with_ids, has_ids
from .operations.lost import made_by, pass_on, without_gradient
from .operations.notes import Notes, notes_here
from .operations.readers import READERS, is_idle
from .operations.tensors import ScaleGradient, live, untouched
from .rules import DEFAULT, Rule, RuleSet, rule_set
from .token_ids import Ids

if TYPE_CHECKING:
    from .constants import Books
    from .memory import Keeper
    from .operations.tensors import Reader
    from .sources import Sources


class Propagation(TorchFunctionMode):
    """A rule set at work on every torch call of this thread, from `with` to its end.

    Parameters are constants inside: only tensors that require a gradient and are not parameters carry relevance.
    """

    def __init__(
        self,
        rules: RuleSet,
        books: Books | None = None,
        sources: Sources | None = None,
        table: Mapping[str, Reader] = READERS,
    ) -> None:
        super().__init__()
        self.rules = rules
        self.table = table
        self.books = books
        self.sources = sources
        self.coverage = Coverage()
        self.functions = Functions()
        self.written_softmaxes: list[Any] = []
        """Nodes of the graph that are softmaxes written in several calls, where a rule differentiates them."""
        self.has_lost = False
        """Whether the model made something of its input without a gradient."""
        self.lost_sums: dict[Any, str] = {}
        """Nodes that add such a value to live ones, each with the call that made it."""
        self.target_nodes: set[Any] = set()
        """Nodes that the target made of the model's output, after the forward pass."""
        self.held: Held | None = None
        """Frozen factors of another pass to use instead of this one's; see `held`."""
        self.calls: dict[Any, tuple[Any, str]] | None = None
        """Node of the graph -> the module and the call that made it, for a pass that is run to name a culprit."""
        self.generators: set[torch.Generator] = set()
        """Generators of random numbers that calls were given, beside torch's own."""
        self.keeper: Keeper | None = None
        outer = notes_here()
        self.notes = Notes() if outer is None else outer
        """What is noted on tensors: until the explanation is made, or until the end of a context of the user's."""
        self._erases = outer is None
        self.is_lean = True  # fused attention keeps the mask as it is given, which a model may change in place
        self._constants: dict[int, tuple[Parameter, Tensor]] = {}
        self._asks_for_parameters = books is not None or not rules.linear.differentiates
        self._readers: dict[Any, Reader] = {}
        self._outer: list[Propagation | None] = []
        self._shadowed = False

    def __enter__(self) -> Propagation:
        # The innermost context wins: the one around it sees nothing until this one ends.
        outer = getattr(_innermost, "context", None)
        self._outer.append(outer)
        if outer is not None:
            outer._shadowed = True
        self._shadowed = False
        _innermost.context = self
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        outer = self._outer.pop()
        _innermost.context = outer
        if outer is not None:
            outer._shadowed = False
        if self._erases and not self._outer:
            self.notes.erase()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if came:
            handle()
        out = self._read(func, types, args, kwargs)
        if self.has_lost:
            pass_on(self, func, args, kwargs, out)
        if self.calls is not None:
            note_call(self.calls, out, getattr(func, "__name__", str(func)))
        if self.held is not None:
            out = self.held.choices(func, args, kwargs or {}, out)
        return out

    def _read(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        reader = self._readers.get(func) or self._find_reader(func)
        if kwargs and kwargs.get("generator") is not None:
            self.generators.add(kwargs["generator"])
        # Without gradients nothing is carried, and parameters that are moved about come back as parameters.
        if reader is untouched or self._shadowed:
            return func(*args, **kwargs) if kwargs else func(*args)
        if not torch.is_grad_enabled():
            return without_gradient(self, func, args, kwargs or {})
        # Torch names the types of arguments, not of an index.
        if self.sources is not None and (Ids in types if types else func is _GET_ITEM and has_ids(args[1])):
            return self._call_with_ids(reader, func, args, kwargs or {})
        for arg in args:
            if type(arg) is Parameter:
                args = tuple([self.constant(arg) if type(arg) is Parameter else arg for arg in args])
                break
        if not kwargs:  # as in most calls, which are worth a way of their own
            if reader is _as_it_stands:
                return func(*args)
            return reader(self, func, *args)
        for arg in kwargs.values():
            if type(arg) is Parameter:
                kwargs = {name: self.constant(arg) for name, arg in kwargs.items()}
                break
        if reader is _as_it_stands or kwargs.get("out") is not None:  # where torch lets no gradient through
            return func(*args, **kwargs)
        return reader(self, func, *args, **kwargs)

    def _call_with_ids(
        self, reader: Reader, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        args = tuple([self.constant(arg) for arg in args])
        return call_with_ids(self, reader, func, args, {name: self.constant(arg) for name, arg in kwargs.items()})

    def _find_reader(self, func: Callable[..., Any]) -> Reader:
        name = getattr(func, "__name__", "").split(".")[0]  # aten overloads are called "add.Tensor"
        reader = self.table.get(_ATTRIBUTES.get(func, name))
        if reader is None:
            reader = untouched if name in ("__get__", "__set__", "") else self.reader_of_others(name)
        if self.books is None and (reader is _named or is_idle(reader, self.rules)):
            reader = _as_it_stands
        self._readers[func] = reader
        return reader

    def read_also(self, readers: Mapping[str, Reader]) -> None:
        """Read some calls otherwise from now on."""
        if not readers.items() <= self.table.items():
            self.table = {**self.table, **readers}
            self._readers.clear()

    def reader_of_others(self, name: str) -> Reader:
        """Return the reader of calls that the table does not have."""
        return _in_place if name.endswith("_") and not name.startswith("_") else _named

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Apply the rules also to calls made while one is being read."""
        TorchFunctionMode.__enter__(self)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            TorchFunctionMode.__exit__(self, None, None, None)  # type: ignore[no-untyped-call]

    def gradient(self, output: Tensor, inputs: Sequence[Tensor], *, keep: bool = False) -> tuple[Tensor | None, ...]:
        """Return the gradients of a scalar. What a checkpoint computes again meanwhile meets the same rules.

        `torch.autograd.grad` is a torch call itself and would pop the context, so the engine is called directly.
        """
        engine = torch.autograd.Variable._execution_engine
        # A user's autocast is for the forward pass: gradients have the types that it left.
        with self, self.coverage.paused(), torch.autocast(output.device.type, enabled=False):
            return engine.run_backward(
                (output,), (torch.ones_like(output),), keep, False, tuple(inputs), allow_unreachable=True,
                accumulate_grad=False,
            )  # fmt: skip

    def meet(self, kind: str, function: Callable[..., Any], path: str = "") -> Rule:
        """Record that a call is governed by the rule for its kind, and on which path; return that rule."""
        rule: Rule = getattr(self.rules, kind)
        self.coverage.record(kind, function.__name__, rule.name, path)
        return rule

    def book(
        self,
        out: Tensor,
        constant: Any,
        *,
        of: Any = None,
        factor: float = 1,
        where: Tensor | None = None,
        joined: bool = False,
        of_layer: bool = False,
    ) -> None:
        """Book a constant that `out` contains: `constant * factor`, at the places `where`."""
        if self.has_lost and live(out) and (name := made_by(constant) or made_by(of)):
            self.lost_sums[out.grad_fn] = name
        if self.books is not None and constant is not None and live(out) and not self.coverage.is_paused:
            parameter = self.parameter_of(constant if of is None else of)
            self.books.book(out, constant, parameter, factor=factor, where=where, joined=joined, of_layer=of_layer)

    def frozen(self, x: Any) -> Any:
        """Return a live tensor as a constant; anything else as it is."""
        if not live(x):
            return x
        return x.detach() if self.held is None else self.held.frozen(x)

    def share(self, x: Any, factor: float) -> Any:
        """Let `factor` of the gradient pass to `x`, if it is live."""
        if not live(x):
            return x
        out = ScaleGradient.apply(x, factor)
        return out if self.held is None else with_value(out, self.held.share(x, factor))

    def ratio(self, source: Tensor, value: Tensor, limits: Limits) -> Tensor:
        """Return an activation's value, read as its source times a constant."""
        if source.is_complex():
            raise NotApplicable(
                f"The model applies {limits.name or 'a function'!r} to complex numbers, for which there is no rule: "
                "write it with their real and imaginary parts."
            )
        if self.held is not None:
            value = self.held.times(source, value, limits.at_zero, limits.slope).to(value.dtype)
        return Ratio.apply(source, [value], limits, not self.rules.attention.freezes)  # type: ignore[no-any-return]

    def constant(self, x: Any) -> Any:
        """Return a parameter as a constant that still tells its origin; anything else as it is."""
        if type(x) is not Parameter or not x.requires_grad:
            return x
        known = self._constants.get(id(x))
        if known is not None:
            return known[1]
        constant = x.detach()
        if self._asks_for_parameters:
            self.notes.put(constant, "conserva_parameter", x)
        self._constants[id(x)] = (x, constant)
        return constant

    def parameter_of(self, x: Any) -> Parameter | None:
        """Return the parameter that a constant is, or was directly made from."""
        return x if type(x) is Parameter else getattr(x, "conserva_parameter", None)

    def name_as(self, x: Any, origin: Any) -> None:
        """Remember that the constant `x` was made from the parameter that `origin` is."""
        parameter = self.parameter_of(origin)
        if parameter is not None and x is not parameter and isinstance(x, Tensor) and not x.requires_grad:
            self.notes.put(x, "conserva_parameter", parameter)


_innermost = threading.local()
_GET_ITEM = Tensor.__getitem__
_ATTRIBUTES = {getattr(Tensor, name).__get__: "transpose" for name in ("T", "mT", "H", "mH")}
_ATTRIBUTES[Tensor.data.__get__] = "detach"  # type: ignore[attr-defined]
"""Attributes of tensors that are calls by another name."""


def _as_it_stands(context: Propagation, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _named(context: Propagation, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    out = function(*args, **kwargs)
    if args and context.books is not None:
        context.name_as(out, args[0])
    return out


def _in_place(context: Propagation, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make a call on a copy: on a view of another tensor, the graph would not tell which call it was."""
    if not args or not live(args[0]) or function.__name__ in _PLAIN_IN_PLACE:
        return function(*args, **kwargs)
    return made_beside(context, args[0], lambda copy: function(copy.clone(), *args[1:], **kwargs))


_PLAIN_IN_PLACE = (
    "requires_grad_",
    "detach_",
    "retain_grad",
    "zero_",
    "fill_",
    "copy_",
    "set_",
    "resize_",
    "share_memory_",
)
"""Calls that end in an underscore and compute nothing: they store what they are given, or change the shape alone."""


def note_call(calls: dict[Any, tuple[Any, str]], out: Any, name: str) -> None:
    """Note for each new node behind an output the call that made it, and the module it was made in."""
    outputs = out if isinstance(out, (tuple, list)) else (out,)
    waiting = [x.grad_fn for x in outputs if isinstance(x, Tensor) and x.grad_fn is not None]
    module = calling_module(2) if waiting else None
    while waiting:
        node = waiting.pop()
        if node not in calls:
            calls[node] = (module, name)
            waiting.extend(before for before, _ in node.next_functions if before is not None)


def rules(base: str | RuleSet = DEFAULT, **changes: str | float) -> Propagation:
    """Return a rule set as a context: inside, the gradient of what torch computes follows its rules.

    The forward pass is unchanged, and parameters are constants. Take the gradient after the context. What is returned
    is also accepted by `conserva.relevance` as `rules` and by `conserva.explain` as `method`.

    Parameters
    ----------
    base
        The name of a rule set, or a rule set.
    changes
        Rules that differ from it, by kind: `attention`, `norm`, `activation`, `product`, `bilinear`, `linear`; and the
        strengths `epsilon` and `gamma` of the rules for linear layers. docs/methods.md defines them.

    Returns
    -------
    Propagation
        A context manager.

    Examples
    --------
    >>> task = conserva.load()
    >>> inputs = task.tokenizer("a joy.", return_tensors="pt")
    >>> x = task.model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
    >>> with conserva.rules("exact", product="freeze-gate", gamma=0.1):
    ...     logits = task.model(inputs_embeds=x).logits
    >>> logits[0, 1].backward()
    >>> relevance = x * x.grad
    """
    return Propagation(rule_set(base, **changes))


def as_rule_set(given: str | RuleSet | Propagation) -> RuleSet:
    """Return the rule set that a user named, composed, or put into a context."""
    if isinstance(given, Propagation):
        return given.rules
    if isinstance(given, (str, RuleSet)):
        return rule_set(given)
    raise Error(f"rules={given!r} is neither the name of a rule set nor made by conserva.rules(...).")
