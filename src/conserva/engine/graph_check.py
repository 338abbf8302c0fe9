"""Check of the autograd graph: every node between the output and the inputs must be allowed by the rules.

The graph shows which operations the gradient passes through, independently of the readers of torch calls. A node is
allowed if it is linear in its live edges, if it is an autograd function of a rule, or if the rule set differentiates
its kind. All other nodes are refused, because the relevance would be wrong without notice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from ..errors import NotApplicable
from . import autograd_graph as graph
from .autograd_graph import Edge, live_edges, name_of
from .graph_factors import are_shared, one_source, reaches
from .module_tree import Modules
from .operations.patterns import ATTENTION, NORM, SHARE, is_watched, kind_of_factor, kind_of_quotient, refusal_of
from .quantized import is_packed_product, packed_biases

if TYPE_CHECKING:
    from .constants import Constants
    from .context import Propagation

Calls = Mapping[Any, tuple[Any, str]]
"""Node -> the module that was running, and the torch call that created the node."""


class Refused(NotApplicable):
    """A node of the graph that the rules do not allow."""

    def __init__(self, message: str, node: Any) -> None:
        super().__init__(message)
        self.node = node


def check(
    model: nn.Module, outputs: Sequence[Tensor], context: Propagation, trusted: Collection[str] = ()
) -> list[Any]:
    """Raise if the graph of some outputs has a node that the context's rules do not allow; return its nodes.

    Parameters
    ----------
    model
        The model, to name its modules in messages.
    outputs
        The explained numbers.
    context
        The context of the forward pass. If it recorded calls, messages name the module and the call.
    trusted
        Names of foreign autograd functions that are allowed.
    """
    nodes = graph.nodes_behind(outputs)
    try:
        checker = _NodeChecker(context, trusted, nodes)
        if context.detached_sums and not checker.is_plain_gradient:
            _refuse_detached_sums(nodes, context)
        for alike in _by_kind(nodes):
            for node in alike:
                if checker.check(node):
                    break  # the result holds for all nodes of this kind
        _refuse_parameters(model, graph.leaves_of(nodes))
    except Refused as error:
        if context.calls is None:
            raise
        raise NotApplicable(f"{error}{_where(model, error.node, context.calls)}") from None
    if not context.rules.attention.refuses and not context.coverage.count("attention"):
        raise NotApplicable(_no_attention(model, context.rules.name))
    return nodes


class _NodeChecker:
    """Checks single nodes of a graph against a rule set."""

    def __init__(self, context: Propagation, trusted: Collection[str], nodes: Sequence[Any]) -> None:
        rules = context.rules
        self.rules = rules
        self.trusted = trusted
        self.softmaxes = set(context.written_softmaxes)
        self.target_nodes = context.target_nodes
        self.score_products: set[Any] = set()
        if rules.attention.shares:
            self.score_products = inside_softmaxes(nodes, context.written_softmaxes)[1]
        self.allowed = set(graph.LINEAR | graph.HOMOGENEOUS | {"AccumulateGrad", "GraphRoot"})
        if rules.activation.differentiates:
            self.allowed |= graph.ACTIVATIONS
        if rules.norm.differentiates:
            self.allowed |= graph.NORMS
        if not rules.attention.freezes:
            self.allowed |= graph.SOFTMAXES
        is_differentiated = rules.product.differentiates and rules.attention.differentiates
        self.is_plain_gradient = is_differentiated and not is_watched(rules)

    def check(self, node: Any) -> bool:
        """Raise unless a node is allowed; return whether all nodes of its kind are allowed, too."""
        name = name_of(node)
        if isinstance(node, BackwardCFunction):
            _refuse_foreign(node, self.trusted)
            return self._check_own(node) if graph.is_own(node) else True
        if "CompiledFunction" in name or "DifferentiableGraph" in name:
            raise Refused(f"A part of the model is compiled or scripted ({name}): run it as plain PyTorch.", node)
        if self.is_plain_gradient:
            return True
        if name in graph.BATCH_NORMS and getattr(node, "_saved_training", False):
            raise Refused(f"A batch norm in training mode ({name}) has no rule: call model.eval() first.", node)
        if name in _REDUCED_BY_NAME and getattr(node, "_saved_reduce", "") == "prod":
            raise Refused(f"{name} multiplies values that depend on the input, and has no rule.", node)
        weight = _LIVE_WEIGHTS.get(name)
        if weight is not None and live_edges(node, (weight,)) and not self.rules.product.differentiates:
            raise Refused(
                f"{name} has a weight that depends on the input, and has no rule: write it as a product.", node
            )
        if self.rules.norm.freezes and name in graph.POWERS and self._is_leftover(node):
            raise Refused(
                f"A root or a reciprocal of a reduction ({name}) is not the scale of a norm that conserva recognises: "
                "it is used otherwise than as a factor or a divisor. Use one of torch's norms instead.",
                node,
            )
        if name in graph.PRODUCTS:
            self._check_product(node, name)
        elif name in graph.QUOTIENTS:
            self._check_quotient(node, name)
        elif name in graph.MATRIX_PRODUCTS:
            self._check_matrix_product(node, name)
        elif name in graph.FUSED_ATTENTION and self.rules.attention.freezes:
            if len(live_edges(node)) > 1 or not live_edges(node, (2,)):
                raise self._without_rule(node, name)
        elif name in self.allowed:
            each = name in graph.BATCH_NORMS or name in _REDUCED_BY_NAME or name in _LIVE_WEIGHTS
            return not each and name not in graph.POWERS
        elif node not in self.softmaxes and not (name in _LOG_PROBABILITIES and node in self.target_nodes):
            raise self._without_rule(node, name)
        return False

    @staticmethod
    def _is_leftover(node: Any) -> bool:
        """Return whether a power is a function of a reduction that is not a softmax's denominator."""
        function = graph.elementwise_of(node)
        made = graph.Provenance((node, 0)) if function in graph.POWERS else None
        return made is not None and made.scaling in graph.POWERS and not made.summed

    def _check_own(self, node: Any) -> bool:
        limits = getattr(node, "limits", None)
        if limits is None:
            return True
        if not limits.is_finite and not getattr(node, "is_differentiated", False):
            raise Refused(
                f"{node.elementwise} is not finite at 0, so the rule 'ratio' is not defined for it: its value cannot "
                "be split into a part of its input and a constant. Choose rules that differentiate activations, such "
                "as 'ah+ln'.",
                node,
            )
        return False

    def _check_product(self, node: Any, name: str) -> None:
        factors = live_edges(node, graph.PRODUCTS[name])
        if len(factors) < 2:
            return
        for numerator, factor in ((factors[0], factors[1]), (factors[1], factors[0])):
            made = graph.Provenance(factor)
            self._check_scale(node, *kind_of_factor(numerator, made))
            if made.is_of_scores:
                self._check_weight(node, factor)
        if self.rules.product.differentiates:
            return
        if not are_shared(factors):
            raise Refused("A product of tensors that depend on the input was computed by a call without a rule.", node)
        if self.rules.activation.follows and one_source(factors):
            raise Refused(
                "A product of two elementwise functions of the same tensor is an activation, written in a way that "
                "conserva does not recognise. Use one torch call instead, such as torch.nn.functional.silu.",
                node,
            )

    def _check_quotient(self, node: Any, name: str) -> None:
        divisor = live_edges(node, (graph.QUOTIENTS[name],))
        if not divisor:
            return
        above = live_edges(node, (1 - graph.QUOTIENTS[name],))
        kind = kind_of_quotient(above[0] if above else None, divisor[0]) if name == "Div" else ("", "")
        self._check_scale(node, *kind)
        if not self.rules.product.differentiates and kind[0] != ATTENTION:
            raise Refused(
                "A division by a tensor that depends on the input was computed by a call without a rule.", node
            )

    def _check_scale(self, node: Any, kind: str, function: str) -> None:
        if refusal := refusal_of(kind, self.rules):
            raise Refused(refusal, node)
        if kind in _RULED and (self.rules.norm if kind == NORM else self.rules.attention).freezes:
            what = "A norm" if kind == NORM else "A softmax"
            raise Refused(
                f"{what} is written out in a way that conserva does not recognise: a tensor is scaled by "
                f"{function.lower() or 'a sum'} of its own values. Use torch's softmax or norm instead.",
                node,
            )

    def _check_weight(self, node: Any, factor: Edge) -> None:
        """Refuse a factor that is a nonlinear function of attention scores, unless it comes from a softmax."""
        if self.rules.attention.differentiates or not self.rules.bilinear.refuses:
            return
        if not reaches(factor, self._is_softmax, _AFTER_SOFTMAX):
            raise Refused(f"{_UNRECOGNISED} {self._advice()}", node)

    def _advice(self) -> str:
        base = self.rules.name.partition(" (")[0]  # without the changes made to it
        return (
            f"If it is not attention, pass rules=conserva.rules({base!r}, bilinear='half'), on the command line "
            f"--method {base}:bilinear=half; if it is, compute its weights with torch.softmax."
        )

    def _check_matrix_product(self, node: Any, name: str) -> None:
        factors = live_edges(node, graph.MATRIX_PRODUCTS[name])
        if len(factors) < 2 or self.rules.bilinear.differentiates:
            return
        if self.rules.attention.shares and self._is_of_attention(node, factors):
            return
        if self.rules.bilinear.shares:
            if not are_shared(factors):
                raise Refused(
                    "A matrix product of tensors that depend on the input was computed by a call without a rule.", node
                )
            return
        if self.rules.attention.differentiates:
            return
        raise Refused(f"{_UNRECOGNISED} {self._advice()}", node)

    def _is_of_attention(self, node: Any, factors: Sequence[Edge]) -> bool:
        """Return whether a matrix product computes the scores of a softmax, or multiplies by its probabilities."""
        return node in self.score_products or any(reaches(factor, self._is_softmax) for factor in factors)

    def _is_softmax(self, node: Any) -> bool:
        return node in self.softmaxes or name_of(node) in graph.SOFTMAXES

    def _without_rule(self, node: Any, name: str) -> Refused:
        kind = next((kind for kind, names in _KINDS.items() if name in names), "a call")
        return Refused(
            f"The graph has {kind} ({name}) to which no rule of {self.rules.name!r} was applied: it was computed "
            "outside the context, or by a call without a rule.",
            node,
        )


_UNRECOGNISED = (
    "A product of two tensors that depend on the input is not part of an attention that conserva recognises: no "
    "softmax is between the scores and the values."
)
_LIVE_WEIGHTS = {"Lerp": 2, "Prelu": 1, "PreluKernel": 1}
"""Nodes that are linear in all edges but that of their weight -> its index."""
_RULED = (ATTENTION, NORM, SHARE)
_REDUCED_BY_NAME = ("ScatterReduce", "IndexReduce", "SegmentReduce")
"""Nodes whose attribute `reduce` decides whether they add or multiply."""
_AFTER_SOFTMAX = graph.REDUCTIONS | set(graph.MATRIX_PRODUCTS)
"""Nodes between a softmax and the output of its attention."""
_LOG_PROBABILITIES = ("LogSoftmax", "Logsumexp")
"""Nodes that a target function may have: the gap of a log-probability is minus the entropy."""
_KINDS = {"attention": graph.SOFTMAXES, "a norm": graph.NORMS, "an activation": graph.ACTIVATIONS}


def inside_softmaxes(nodes: Sequence[Any], softmaxes: Sequence[Any]) -> tuple[set[Any], set[Any]]:
    """Return the nodes between softmaxes and the matrix products that compute their scores, and these products."""
    inside: set[Any] = set()
    products: set[Any] = set()
    starts = [node for node in nodes if name_of(node) in ("Softmax", "SafeSoftmax")] + list(softmaxes)
    waiting, seen = [before for start in starts for before, _ in start.next_functions], {None}
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        name = name_of(node)
        if name == "UnsafeView":  # a view of a matrix product; its bias is recorded in the ledger at the product
            node = node.next_functions[0][0]
            name = name_of(node)
        if name in graph.MATRIX_PRODUCTS:
            products.add(node)
        if name not in graph.MATRIX_PRODUCTS or name == "Baddbmm":  # which adds a mask
            inside.add(node)
        if name not in graph.MATRIX_PRODUCTS:
            waiting += [before for before, _ in node.next_functions]
    return inside, products


def cancel_inside_softmax(nodes: Sequence[Any], context: Propagation, constants: Constants) -> None:
    """Remove masks and position biases inside softmaxes from the ledger: they are part of the attention."""
    constants.cancel(inside_softmaxes(nodes, context.written_softmaxes)[0], layers=False)


def _by_kind(nodes: Sequence[Any]) -> list[list[Any]]:
    """Return the nodes grouped by kind, so that checks which depend on the kind only are made once."""
    kinds: dict[Any, list[Any]] = defaultdict(list)
    for node in nodes:
        kinds[name_of(node) if type(node).__name__ == "CppFunction" else type(node)].append(node)
    return list(kinds.values())


def _refuse_detached_sums(nodes: Sequence[Any], context: Propagation) -> None:
    # Inside a softmax a detached summand is allowed: it is mostly the maximum of the scores, which changes nothing.
    inside, detached_sums = inside_softmaxes(nodes, context.written_softmaxes)[0], context.detached_sums
    for node in nodes:
        if node in detached_sums and node not in inside:
            raise Refused(
                "The model computes a value from its input without a gradient (the last call is "
                f"{detached_sums[node]!r}), under torch.no_grad or by detach, and adds it to a tensor with a gradient: "
                "its share of the output is unknown. Run that part with gradients, or pass the name of a later module "
                "as at='...'.",
                node,
            )


def _refuse_parameters(model: nn.Module, leaves: Sequence[Tensor]) -> None:
    for leaf in leaves:
        is_parameter = isinstance(leaf, nn.Parameter)
        if is_parameter and not any(leaf is bias for bias in packed_biases(Modules.of(model)).values()):
            names = (name for name, parameter in model.named_parameters() if parameter is leaf)
            raise NotApplicable(
                f"Parameter {next(names, 'of another module')!r} was used outside the context, so it was not treated "
                "as a constant."
            )


def _refuse_foreign(node: Any, trusted: Collection[str]) -> None:
    function = type(node)._forward_cls
    if "CheckpointFunction" in function.__name__:
        raise NotApplicable(
            "The model uses reentrant checkpoints, which run outside the context: pass use_reentrant=False to them."
        )
    if any(name in function.__name__ for name in ("CompiledFunction", "ApplyTemplate")):
        raise Refused(
            "A part of the model is compiled, so rules cannot be applied inside it: run it as plain PyTorch.", node
        )
    if not graph.is_own(node) and not is_packed_product(function) and function.__name__ not in trusted:
        raise Refused(
            f"{function.__module__}.{function.__name__} is a foreign autograd function, to which rules cannot be "
            f"applied. To use its own gradient, pass trusted=[{function.__name__!r}]: this is correct if it is linear, "
            "or an activation under a rule set that differentiates activations; not for attention and norms.",
            node,
        )


def _where(model: nn.Module, node: Any, calls: Calls) -> str:
    """Return the module and the call that created a node, as the end of an error message."""
    if node not in calls:
        return " It was computed outside the model's forward, for example by a target function."
    module, call = calls[node]
    name = next((name for name, each in model.named_modules() if each is module), None)
    where = f"module {name!r} ({type(module).__name__})" if name else f"{type(model).__name__} itself"
    return f" Found in {where}, in the call {call!r}."


def _no_attention(model: nn.Module, rules: str) -> str:
    name: str = model._get_name()  # type: ignore[no-untyped-call]
    kernel = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if kernel not in (None, "eager", "sdpa"):
        return (
            f"{name} computes its attention with {kernel!r}, outside torch, so that rules cannot be "
            "applied to it. Call model.set_attn_implementation('sdpa') first."
        )
    return (
        f"{name} has no attention that the output depends on: it called neither softmax nor "
        "scaled_dot_product_attention. If it has its own attention kernel, switch it to torch's; if it is not a "
        f"Transformer and has no attention at all, pass rules=conserva.rules({rules.split(' ')[0]!r}, "
        "attention='refuse')."
    )
