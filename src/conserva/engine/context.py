"""The context that applies a rule set to the torch calls a model makes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from ..errors import Error, NotApplicable
from .context_ends import out_of_order, skipped_block
from .coverage import Coverage, record_call, unexpected_attention
from .frozen_factors import FrozenFactors, with_value
from .interrupts import handle, pending
from .operations.default_readers import call_unchanged, in_place, linear_call
from .operations.detached_values import detached_by, propagate_mark, without_gradient
from .operations.elementwise import Functions, Limits, Ratio
from .operations.lookup import call_with_ids, has_ids
from .operations.readers import READERS, is_idle
from .operations.tensor_attributes import TensorAttributes, current_attributes
from .operations.tensors import ScaleGradient, live, pass_through
from .rules import DEFAULT, Rule, RuleSet, rule_set
from .token_ids import Ids

if TYPE_CHECKING:
    from .autograd_graph import Edge, Provenance
    from .constants import Constants
    from .memory import Keeper
    from .operations.tensors import Reader
    from .sources import Sources


class Propagation(TorchFunctionMode):
    """A context manager that applies a rule set to every torch call of the current thread.

    Parameters are constants inside: only tensors that require a gradient and are not parameters carry relevance.
    """

    def __init__(
        self,
        rules: RuleSet,
        constants: Constants | None = None,
        sources: Sources | None = None,
        table: Mapping[str, Reader] = READERS,
    ) -> None:
        super().__init__()
        self.rules = rules
        self.finds_residual_sums = not rules.residual.differentiates
        self.table = table
        self.constants = constants
        self.sources = sources
        self.coverage = Coverage()
        self.functions = Functions()
        self.last_scale: tuple[Edge | None, Provenance] | None = None
        """The last root or reciprocal of a reduction, until a product or a quotient reads it, and how it was computed.

        A norm multiplies by it in the next call. Only one is held: each keeps its part of the graph alive.
        """
        self.written_softmaxes: list[Any] = []
        """Nodes of differentiated softmaxes that are written in several calls."""
        self.has_detached = False
        """Whether the model computed a value from its input without a gradient."""
        self.detached_sums: dict[Any, str] = {}
        """Nodes that add such a value to a live tensor -> the call that computed the value."""
        self.target_nodes: set[Any] = set()
        """Nodes of the target function, between the model's output and the explained number."""
        self.frozen_factors: FrozenFactors | None = None
        """Frozen factors of another pass, to use instead of those of this pass."""
        self.calls: dict[Any, tuple[Any, str]] | None = None
        """Node of the graph -> the module and the call that created it. Only for passes that locate an error."""
        self.generators: set[torch.Generator] = set()
        """Random number generators passed to torch calls as `generator=`."""
        self.keeper: Keeper | None = None
        outer = current_attributes()
        self.attributes = TensorAttributes() if outer is None else outer
        """Attributes set on tensors, removed at the end of an explanation or of a context opened by a user."""
        self._removes_attributes = outer is None
        self.is_lean = True  # fused attention saves the mask itself, which a model may change in place
        self._constants: dict[int, tuple[Parameter, Tensor]] = {}
        """The id of a parameter -> the parameter, and the constant that is used in its place."""
        self._parameters: dict[int, Parameter] = {}
        """The id of such a constant -> the parameter."""
        self._readers: dict[Any, Reader] = {}
        self._outer: list[Propagation | None] = []
        self._shadowed = False

    def __enter__(self) -> Propagation:
        # Only the innermost context applies its rules; outer ones are inactive until it ends.
        outer = getattr(_innermost, "context", None)
        self._outer.append(outer)
        if outer is not None:
            outer._shadowed = True
        self._shadowed = False
        _innermost.context = self
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]

    def __exit__(self, *exception: Any) -> None:
        still_open = self._opened_inside()
        for _ in (*still_open, self):
            super().__exit__(*exception)  # type: ignore[no-untyped-call] # ends the innermost
        outer = self._outer.pop()
        if still_open:
            still_open[-1]._outer[-1] = outer
            for context in reversed(still_open):
                TorchFunctionMode.__enter__(context)  # type: ignore[no-untyped-call]
        else:
            _innermost.context = outer
            if outer is not None:
                outer._shadowed = False
        self.last_scale = None
        if self._removes_attributes and not self._outer:
            self.attributes.remove_all()
        if still_open and exception[0] is None:
            raise out_of_order()
        if skipped := skipped_block(exception[0]):
            raise skipped from None

    def _opened_inside(self) -> list[Propagation]:
        """Return the contexts that were opened inside this one and have not ended, the innermost first."""
        contexts, context = [], current()
        while context is not None and context is not self:
            contexts.append(context)
            context = context._outer[-1]
        return [] if context is None else contexts

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if pending:
            handle()
        reader = self._readers.get(func) or self._find_reader(func)
        # Most calls read an attribute of a tensor, such as its shape.
        if reader is pass_through and not self.has_detached and self.calls is None and self.frozen_factors is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        out = self._read(reader, func, types, args, kwargs)
        if self.has_detached:
            propagate_mark(self, func, args, kwargs, out)
        if self.calls is not None:
            record_call(self.calls, out, getattr(func, "__name__", str(func)))
        if self.frozen_factors is not None:
            out = self.frozen_factors.choices(func, args, kwargs or {}, out)
        return out

    def _read(
        self, reader: Reader, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> Any:
        if kwargs and kwargs.get("generator") is not None:
            self.generators.add(kwargs["generator"])
        # Under no_grad nothing is propagated, and parameters must stay parameters, as in `module.to(device)`.
        if reader is pass_through or self._shadowed:
            return func(*args, **kwargs) if kwargs else func(*args)
        if not torch.is_grad_enabled():
            return without_gradient(self, func, args, kwargs or {})
        # `types` has the tensor subclasses among the arguments, but not those inside an index.
        if self.sources is not None and (Ids in types if types else func is _GET_ITEM and has_ids(args[1])):
            return self._call_with_ids(reader, func, args, kwargs or {})
        for arg in args:
            if type(arg) is Parameter:
                args = tuple([self.constant(arg) if type(arg) is Parameter else arg for arg in args])
                break
        if not kwargs:  # a fast path for most calls
            if reader is call_unchanged:
                return func(*args)
            return reader(self, func, *args)
        for arg in kwargs.values():
            if type(arg) is Parameter:
                kwargs = {name: self.constant(arg) for name, arg in kwargs.items()}
                break
        if reader is call_unchanged or kwargs.get("out") is not None:  # `out=` does not support gradients
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
            reader = pass_through if name in ("__get__", "__set__", "") else self.default_reader(name)
        if self.constants is None and (reader is linear_call or is_idle(reader, self.rules)):
            reader = call_unchanged
        self._readers[func] = reader
        return reader

    def read_also(self, readers: Mapping[str, Reader]) -> None:
        """Add readers, or replace those of the same names, from now on."""
        if not readers.items() <= self.table.items():
            self.table = {**self.table, **readers}
            self._readers.clear()

    def default_reader(self, name: str) -> Reader:
        """Return the reader for a call that has no entry in the table."""
        return in_place if name.endswith("_") and not name.startswith("_") else linear_call

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Apply the rules to torch calls that a reader makes itself."""
        TorchFunctionMode.__enter__(self)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            TorchFunctionMode.__exit__(self, None, None, None)  # type: ignore[no-untyped-call]

    def gradient(
        self, output: Tensor, inputs: Sequence[Tensor | GradientEdge], *, keep: bool = False
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of a scalar. Checkpoints that recompute in the backward pass do so under the same rules.

        `torch.autograd.grad` is itself dispatched to the context, which is popped meanwhile: so the autograd engine is
        called directly.
        """
        engine = torch.autograd.Variable._execution_engine
        # A user's autocast applies to the forward pass only.
        with self, self.coverage.paused(), torch.autocast(output.device.type, enabled=False):
            return engine.run_backward(
                (output,), (torch.ones_like(output),), keep, False, tuple(inputs), allow_unreachable=True,
                accumulate_grad=False,
            )  # fmt: skip

    def rule_for(self, kind: str, function: Callable[..., Any], path: str = "") -> Rule:
        """Return the rule for a kind of operation, and record in the coverage that a call follows it.

        Parameters
        ----------
        kind
            A kind of operation, such as "norm".
        function
            The torch function that was called.
        path
            How the rule is carried out, where there are several ways.
        """
        rule: Rule = getattr(self.rules, kind)
        if rule.refuses and kind == "attention":
            raise unexpected_attention(self.rules.name, function.__name__)
        self.coverage.record(kind, function.__name__, rule.name, path)
        return rule

    def met_written_softmax(self, out: Tensor) -> None:
        """Note the result of a softmax that is written in several calls, and is differentiated."""
        if self.rules.attention.temperature != 1:
            raise NotApplicable(
                f"rules={self.rules.name!r} differentiate softmaxes at a temperature, which is defined for torch's "
                "softmax only, and the model writes one out: use torch.softmax in it, or choose other rules."
            )
        self.written_softmaxes.append(out.grad_fn)

    def met_residual_sum(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Note a residual sum, for contexts that measure them."""

    def record_constant(
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
        """Record in the ledger that `out` contains `constant * factor` as a summand.

        Parameters
        ----------
        of
            The parameter or constant that `constant` was computed from, where that is another one.
        where
            The elements of `out` that contain it; None for all.
        joined
            Whether the constant was concatenated or assigned, rather than added.
        of_layer
            Whether it is the bias of a linear layer.
        """
        if self.has_detached and live(out) and (name := detached_by(constant) or detached_by(of)):
            self.detached_sums[out.grad_fn] = name
        if self.constants is not None and constant is not None and live(out) and not self.coverage.is_paused:
            parameter = self.parameter_of(constant if of is None else of)
            self.constants.add(out, constant, parameter, factor=factor, where=where, joined=joined, of_layer=of_layer)

    def record_leaf(self, constant: Tensor | None, *, of_layer: bool = False) -> Tensor | None:
        """Record a constant that a call of a live tensor adds at every position, and return a leaf to call it with.

        If the result is None, the call is made with the constant, and `record_constant` records it.
        """
        if constant is None or self.constants is None or self.has_detached or self.coverage.is_paused:
            return None
        return self.constants.add_leaf(constant, self.parameter_of(constant), of_layer)

    def frozen(self, x: Any) -> Any:
        """Return a live tensor detached; anything else unchanged."""
        if not live(x):
            return x
        return x.detach() if self.frozen_factors is None else self.frozen_factors.frozen(x)

    def share(self, x: Any, factor: float) -> Any:
        """Return `x` with its gradient multiplied by `factor`, if it is live."""
        if not live(x):
            return x
        out = ScaleGradient.apply(x, factor)
        return out if self.frozen_factors is None else with_value(out, self.frozen_factors.share(x, factor))

    def ratio(self, source: Tensor, value: Tensor, limits: Limits) -> Tensor:
        """Return an activation's value, as its source times a constant in the backward pass."""
        if source.is_complex():
            raise NotApplicable(
                f"The model applies {limits.name or 'a function'!r} to complex numbers, which no rule supports: "
                "apply it to their real and imaginary parts."
            )
        if self.frozen_factors is not None:
            value = self.frozen_factors.times(source, value, limits.at_zero, limits.slope).to(value.dtype)
        return Ratio.apply(source, [value], limits, not self.rules.attention.freezes)  # type: ignore[no-any-return]

    def constant(self, x: Any) -> Any:
        """Return the constant that is used in place of a parameter; anything else unchanged."""
        if type(x) is not Parameter or not x.requires_grad:
            return x
        known = self._constants.get(id(x))
        if known is not None:
            return known[1]
        constant = x.detach()
        self._constants[id(x)] = (x, constant)
        self._parameters[id(constant)] = x
        return constant

    def parameter_of(self, x: Any) -> Parameter | None:
        """Return the parameter that a constant is, or is a view, copy or cast of; None for other values."""
        if type(x) is Parameter:
            return x
        known = self._parameters.get(id(x))
        return getattr(x, "conserva_parameter", None) if known is None else known

    def name_as(self, x: Any, origin: Any) -> None:
        """Record that the constant `x` was computed from the parameter of `origin`, if that has one."""
        parameter = self.parameter_of(origin)
        if parameter is not None and x is not parameter and isinstance(x, Tensor) and not x.requires_grad:
            self.attributes.set(x, "conserva_parameter", parameter)


def current() -> Propagation | None:
    """Return the context whose rules apply in this thread, if there is one."""
    return getattr(_innermost, "context", None)


_innermost = threading.local()
_GET_ITEM = Tensor.__getitem__
_ATTRIBUTES = {getattr(Tensor, name).__get__: "transpose" for name in ("T", "mT", "H", "mH")}
_ATTRIBUTES[Tensor.data.__get__] = "detach"  # type: ignore[attr-defined]
"""Getters of tensor attributes -> the call that they are equivalent to."""


def rules(base: str | RuleSet = DEFAULT, **changes: str | float) -> Propagation:
    """Return a context manager in which torch operations are differentiated by the rules of a rule set.

    Inside, the forward pass is unchanged and parameters are constants; take the gradient after the context.

    Parameters
    ----------
    base
        The name of a rule set, or a `RuleSet`.
    changes
        Rules to use instead, by kind of operation: `attention`, `norm`, `activation`, `product`, `bilinear`, `linear`,
        `residual`; and the strengths `epsilon` and `gamma` of the rules for linear layers, and `residual_gamma` of that
        for residual sums. docs/methods.md defines them.

    Returns
    -------
    Propagation
        The context manager. `conserva.relevance` also takes it as `rules`, and `conserva.explain` as `method`.

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
    """Return the rule set given by a name, a `RuleSet` or the result of `conserva.rules`."""
    if isinstance(given, Propagation):
        return given.rules
    if isinstance(given, (str, RuleSet)):
        return rule_set(given)
    raise Error(f"rules={given!r} is neither the name of a rule set nor made by conserva.rules(...).")
