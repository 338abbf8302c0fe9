"""The autograd graph as a witness: every node between the output and the inputs must be one that the rules allow.

What the gradient goes through is written in the graph, whatever the readers of torch calls made of the model. A node
is allowed if it is linear in its live edges, if it is an autograd function of a rule, or if the rule set
differentiates its kind. Everything else is refused: an answer would rest on something that was not understood.
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
from .operations.patterns import ATTENTION, NORM, SHARE, is_watched, kind_of_factor, kind_of_quotient, refusal_of
from .quantized import is_packed_product, packed_biases

if TYPE_CHECKING:
    from .constants import Books
    from .context import Propagation

Calls = Mapping[Any, tuple[Any, str]]
"""Node -> the module that was at work, and the torch call that made the node."""


class Refused(NotApplicable):
    """A node of the graph that no rule allows."""

    def __init__(self, message: str, node: Any) -> None:
        super().__init__(message)
        self.node = node


def check(
    model: nn.Module, outputs: Sequence[Tensor], context: Propagation, trusted: Collection[str] = ()
) -> list[Any]:
    """Raise if the graph behind the outputs holds a node that the context's rules do not allow; return its nodes.

    Where the context noted which call made which node, the message names the module and the call.
    """
    nodes = graph.nodes_behind(outputs)
    try:
        witness = _Witness(context, trusted, nodes)
        if context.lost_sums and not witness.is_plain_gradient:
            _refuse_lost(nodes, context)
        for alike in _by_kind(nodes):
            for node in alike:
                if witness.is_settled(node):
                    break  # and so are all of its kind
        _refuse_parameters(model, nodes)
    except Refused as error:
        if context.calls is None:
            raise
        raise NotApplicable(f"{error}{_where(model, error.node, context.calls)}") from None
    if not context.coverage.count("attention"):
        raise NotApplicable(_no_attention(model))
    return nodes


class _Witness:
    """What a rule set allows."""

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

    def is_settled(self, node: Any) -> bool:
        """Raise unless a node is allowed; tell whether its kind alone decides that."""
        name = name_of(node)
        if isinstance(node, BackwardCFunction):
            _refuse_foreign(node, self.trusted)
            return self._check_own(node) if graph.is_own(node) else True
        if "CompiledFunction" in name or "DifferentiableGraph" in name:
            raise Refused(f"A part of the model is compiled or scripted ({name}): run it as plain PyTorch.", node)
        if self.is_plain_gradient:
            return True
        if name in graph.BATCH_NORMS and getattr(node, "_saved_training", False):
            raise Refused(f"A norm over the batch ({name}) was not reached by a rule.", node)
        if name in _REDUCED_BY_NAME and getattr(node, "_saved_reduce", "") == "prod":
            raise Refused(f"{name} multiplies live values, and no rule reads it.", node)
        weight = _LIVE_WEIGHTS.get(name)
        if weight is not None and live_edges(node, (weight,)) and not self.rules.product.differentiates:
            raise Refused(f"{name} has a live weight, and no rule reads it: write it as a product.", node)
        if self.rules.norm.freezes and name in graph.POWERS and self._is_leftover(node):
            raise Refused(
                f"A root or a reciprocal of a reduction ({name}) is not the scale of a norm that conserva recognises: "
                "it is not multiplied or divided by alone. Write the norm with torch's own.",
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
                raise self._unread(node, name)
        elif name in self.allowed:
            each = name in graph.BATCH_NORMS or name in _REDUCED_BY_NAME or name in _LIVE_WEIGHTS
            return not each and name not in graph.POWERS
        elif node not in self.softmaxes and not (name in _LOG_PROBABILITIES and node in self.target_nodes):
            raise self._unread(node, name)
        return False

    @staticmethod
    def _is_leftover(node: Any) -> bool:
        """Tell whether a power is one of a reduction, and of nothing else."""
        function = graph.elementwise_of(node)
        made = graph.Making((node, 0)) if function in graph.POWERS else None
        return made is not None and made.scaling in graph.POWERS and not made.summed  # of a softmax

    def _check_own(self, node: Any) -> bool:
        limits = getattr(node, "limits", None)
        if limits is None:
            return True
        if not limits.is_finite and not getattr(node, "is_differentiated", False):
            raise Refused(
                f"{node.elementwise} is not finite at 0, so it has no reading as an activation: its value cannot be "
                "split into a share of its input and a constant. Choose rules that differentiate activations, such "
                "as 'ah+ln'.",
                node,
            )
        return False

    def _check_product(self, node: Any, name: str) -> None:
        factors = live_edges(node, graph.PRODUCTS[name])
        if len(factors) < 2:
            return
        for numerator, factor in ((factors[0], factors[1]), (factors[1], factors[0])):
            made = graph.Making(factor)
            self._check_scale(node, *kind_of_factor(numerator, made))
            if made.is_of_scores:
                self._check_weight(node, factor)
        if self.rules.product.differentiates:
            return
        if not are_shared(factors):
            raise Refused("A product of two live tensors was made by a call that conserva does not read.", node)
        if self.rules.activation.freezes and one_source(factors):
            raise Refused(
                "A product of two elementwise functions of the same tensor is an activation, written in a way that "
                "conserva does not recognise. Write it as one call of torch, such as torch.nn.functional.silu.",
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
            raise Refused("A division by a live tensor was made by a call that conserva does not read.", node)

    def _check_scale(self, node: Any, kind: str, made_by: str) -> None:
        if refusal := refusal_of(kind, self.rules):
            raise Refused(refusal, node)
        if kind in _RULED and (self.rules.norm if kind == NORM else self.rules.attention).freezes:
            what = "A norm" if kind == NORM else "A softmax"
            raise Refused(
                f"{what} is written out in a way that conserva does not recognise: a live tensor is scaled by "
                f"{made_by.lower() or 'a sum'} of its own values. Write it with torch's own softmax or norm.",
                node,
            )

    def _check_weight(self, node: Any, factor: Edge) -> None:
        """Refuse a factor that is a nonlinear function of scores: attention, unless it is a softmax's."""
        if self.rules.attention.differentiates or not self.rules.bilinear.refuses:
            return
        if not reaches(factor, self._is_softmax, _ON_THE_WAY):
            raise Refused(f"{_UNRECOGNISED} {self._advice()}", node)

    def _advice(self) -> str:
        return (
            "If it is meant to be a product like others, pass "
            f"rules=conserva.rules({self.rules.name!r}, bilinear='half'), on the command line --method "
            f"{self.rules.name}:bilinear=half; if it is attention, write its weights with "
            "torch.softmax."
        )

    def _check_matrix_product(self, node: Any, name: str) -> None:
        factors = live_edges(node, graph.MATRIX_PRODUCTS[name])
        if len(factors) < 2 or self.rules.bilinear.differentiates:
            return
        if self.rules.attention.shares and self._is_of_attention(node, factors):
            return
        if self.rules.bilinear.shares:
            if not are_shared(factors):
                raise Refused("A matrix product of live tensors was made by a call that conserva does not read.", node)
            return
        if self.rules.attention.differentiates:
            return
        raise Refused(f"{_UNRECOGNISED} {self._advice()}", node)

    def _is_of_attention(self, node: Any, factors: Sequence[Edge]) -> bool:
        """Tell whether a matrix product makes the scores of a softmax, or takes its probabilities."""
        return node in self.score_products or any(reaches(factor, self._is_softmax) for factor in factors)

    def _is_softmax(self, node: Any) -> bool:
        return node in self.softmaxes or name_of(node) in graph.SOFTMAXES

    def _unread(self, node: Any, name: str) -> Refused:
        kind = next((kind for kind, names in _KINDS.items() if name in names), "a call")
        return Refused(
            f"The graph has {kind} ({name}) that no rule of {self.rules.name!r} reached: it was computed outside the "
            "context, or by a call that conserva does not read.",
            node,
        )


_UNRECOGNISED = (
    "A product of two live tensors belongs to no attention that conserva recognises: there is no softmax between the "
    "scores and the values."
)
_LIVE_WEIGHTS = {"Lerp": 2, "Prelu": 1, "PreluKernel": 1}
"""Nodes that are linear in all edges but one, their weight's."""
_RULED = (ATTENTION, NORM, SHARE)
_REDUCED_BY_NAME = ("ScatterReduce", "IndexReduce", "SegmentReduce")
"""Nodes of which each says by itself whether it adds or multiplies."""
_ON_THE_WAY = graph.REDUCTIONS | set(graph.MATRIX_PRODUCTS)
"""What lies between a softmax and the output of its attention."""
_LOG_PROBABILITIES = ("LogSoftmax", "Logsumexp")
"""What a target may make of the scores: of a log-probability the gap is minus the entropy."""
_KINDS = {"attention": graph.SOFTMAXES, "a norm": graph.NORMS, "an activation": graph.ACTIVATIONS}


def inside_softmaxes(nodes: Sequence[Any], softmaxes: Sequence[Any]) -> tuple[set[Any], set[Any]]:
    """Return the nodes inside softmaxes, and the matrix products where the scores come from."""
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
        if name == "UnsafeView":  # the shape of a matrix product's result, where its bias is booked
            node = node.next_functions[0][0]
            name = name_of(node)
        if name in graph.MATRIX_PRODUCTS:
            products.add(node)
        if name not in graph.MATRIX_PRODUCTS or name == "Baddbmm":  # which adds a mask
            inside.add(node)
        if name not in graph.MATRIX_PRODUCTS:
            waiting += [before for before, _ in node.next_functions]
    return inside, products


def cancel_inside_softmax(nodes: Sequence[Any], context: Propagation, books: Books) -> None:
    """Take masks and position biases inside a softmax off the books: they are a part of the attention."""
    books.cancel(inside_softmaxes(nodes, context.written_softmaxes)[0], layers=False)


def _by_kind(nodes: Sequence[Any]) -> list[list[Any]]:
    """Return the nodes, those of one kind together: what can be told from the kind is then asked once for all."""
    kinds: dict[Any, list[Any]] = defaultdict(list)
    for node in nodes:
        kinds[name_of(node) if type(node).__name__ == "CppFunction" else type(node)].append(node)
    return list(kinds.values())


def _refuse_lost(nodes: Sequence[Any], context: Propagation) -> None:
    inside, lost_sums = (
        inside_softmaxes(nodes, context.written_softmaxes)[0],
        context.lost_sums,
    )  # where a number that all scores share changes nothing
    for node in nodes:
        if node in lost_sums and node not in inside:
            raise Refused(
                f"The model computes something of its input without a gradient (the last call is {lost_sums[node]!r}), "
                "under torch.no_grad or by detach, and adds it to what has one: its share of the output cannot be "
                "told. Run that part with gradients, or explain from a module after it with at='...'.",
                node,
            )


def _refuse_parameters(model: nn.Module, nodes: Sequence[Any]) -> None:
    known = set(map(id, packed_biases(model.modules()).values()))
    for node in nodes:
        held = getattr(node, "variable", None)
        if isinstance(held, nn.Parameter) and id(held) not in known:
            name = next((name for name, one in model.named_parameters() if one is held), "of another module")
            raise NotApplicable(
                f"Parameter {name!r} was used where the context does not see it, so it is not read as a constant."
            )


def _refuse_foreign(node: Any, trusted: Collection[str]) -> None:
    function = type(node)._forward_cls
    if "CheckpointFunction" in function.__name__:
        raise NotApplicable(
            "The model uses reentrant checkpoints, which run outside the context: use use_reentrant=False."
        )
    if any(name in function.__name__ for name in ("CompiledFunction", "ApplyTemplate")):
        raise Refused("A part of the model is compiled, so no rule reaches it: run it as plain PyTorch.", node)
    if not graph.is_own(node) and not is_packed_product(function) and function.__name__ not in trusted:
        raise Refused(
            f"{function.__module__}.{function.__name__} is an autograd function that conserva cannot look into. "
            f"To take its own gradient there pass trusted=[{function.__name__!r}]: right if it is linear, or an "
            "activation under a rule set that differentiates activations. Attention and norms must be torch's own.",
            node,
        )


def _where(model: nn.Module, node: Any, calls: Calls) -> str:
    """Return where in the model a node was made, as the end of a message."""
    if node not in calls:
        return " It was made outside the model's forward, as a target function does."
    module, call = calls[node]
    name = next((name for name, one in model.named_modules() if one is module), None)
    place = f"module {name!r} ({type(module).__name__})" if name else f"{type(model).__name__} itself"
    return f" Found in {place}, in the call {call!r}."


def _no_attention(model: nn.Module) -> str:
    kernel = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if kernel not in (None, "eager", "sdpa"):
        return (
            f"No attention of {type(model).__name__} was reached: its attention runs in {kernel!r}, outside torch. "
            "Call model.set_attn_implementation('sdpa') first."
        )
    return (
        f"{type(model).__name__} has no attention that reaches the output: no softmax and no "
        "scaled_dot_product_attention was met. conserva explains Transformers; for attention in a kernel of its own, "
        "switch the model to torch's."
    )
