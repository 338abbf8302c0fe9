"""The autograd graph: what each kind of node computes, by name, and how a tensor was computed.

A node is identified by its name, such as `MulBackward0`. The tables below list the known names; all other nodes are
unknown. `operations.patterns` searches the graph while the model runs, to recognise softmaxes and norms;
`graph_check` goes through it after the forward pass, to find operations without a rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

_LEAF = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]

Edge: TypeAlias = tuple[Any, int]
"""A node of the graph, and the index of one of its outputs."""

OWN = __name__.partition(".")[0] + "."
"""The prefix of this package's module names: autograd functions defined here implement rules."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


MOVES = _names("""
    Alias AsStrided Clone Col2Im Conj Contiguous CopyBackwards CopySlices ConstantPadNd Detach Diagonal DiagEmbed Expand
    Flip Gather Identity Im2Col Index IndexCopy IndexFill IndexPut IndexPutImpl IndexSelect Lift LiftFresh MaskedFill
    MaskedScatter MaskedSelect Narrow NarrowCopy Permute PixelShuffle PixelUnshuffle ChannelShuffle Real
    ReflectionPad1D ReflectionPad2D ReflectionPad3D Repeat ReplicationPad1D ReplicationPad2D ReplicationPad3D
    ReshapeAlias ReshapeCopy Roll Rot90 Scatter Select SelectBackward Slice SliceBackward SliceScatter Split
    SplitWithSizes Squeeze Stack Cat T Take ToCopy Transpose Tril Triu Unbind Unfold UnsafeSplit
    UnsafeSplitWithSizes UnsafeView Unsqueeze View ViewAs ViewAsComplex ViewAsReal Where
""")
"""Nodes that copy, view, reorder or select elements, or replace some of them by constants."""

SUMS = _names("Add Sub Rsub Neg Lerp")
"""Elementwise sums and differences."""

REDUCTIONS = _names("""
    Sum Mean Nansum Nanmean ScatterAdd IndexAdd ScatterReduce IndexReduce SegmentReduce Trace
    AvgPool1D AvgPool2D AvgPool3D AdaptiveAvgPool1D AdaptiveAvgPool2D AdaptiveAvgPool3D
""")
"""Sums and means of several elements of one tensor."""

RUNNING_SUMS = _names("Cumsum")
"""Cumulative sums. As a divisor, one normalises; the exp of one is a decay, not a scale."""

RESAMPLINGS = _names("""
    UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D UpsampleNearestExact1D UpsampleNearestExact2D
    UpsampleNearestExact3D UpsampleLinear1D UpsampleBilinear2D UpsampleBilinear2DAa UpsampleBicubic2D
    UpsampleBicubic2DAa UpsampleTrilinear3D FftR2C FftC2R FftC2C
""")
"""Other linear maps of one tensor."""

SELECTIONS = _names("""
    Max Min Amax Amin Maximum Minimum Fmax Fmin Topk Sort Kthvalue Median Nanmedian Cummax Cummin
    MaxPool2DWithIndices MaxPool3DWithIndices AdaptiveMaxPool2D AdaptiveMaxPool3D
""")
"""Nodes that select elements by value: linear as long as the selection stays the same."""

EXTREMA = _names("Max Min Amax Amin")
"""The selections that are reductions: a norm may divide by the largest element."""

HOMOGENEOUS = _names("Relu LeakyRelu Abs RreluWithNoise Prelu PreluKernel")
"""Activations whose ratio act(x) / x equals their derivative, so that their gradient follows the rule `ratio`."""

MATRIX_PRODUCTS = {
    **dict.fromkeys(("Mm", "Bmm", "Mv", "Dot", "Vdot", "GroupedMm", "LinalgVecdot", "Linear"), (0, 1)),
    **dict.fromkeys(("Addmm", "Baddbmm", "Addbmm", "Addmv", "Addr"), (1, 2)),
    **dict.fromkeys(("Convolution", "ConvolutionOverrideable", "MkldnnConvolution", "CudnnConvolution"), (0, 1)),
    **dict.fromkeys(("Trilinear", "EmbeddingBag"), (0, 1, 2)),
    **dict.fromkeys(("LinalgCross", "SparseMm", "SparseAddmm"), (0, 1)),
}
"""Matrix products and convolutions -> the indices of the edges that are their factors."""

PRODUCTS = {"Mul": (0, 1), "Addcmul": (1, 2)}
"""Elementwise products -> the indices of the edges that are their factors."""

QUOTIENTS = {"Div": 1, "LinalgSolveTriangular": 0, "LinalgSolveEx": 0, "TriangularSolve": 1}
"""Quotients -> the index of the edge that is the divisor."""

SOFTMAXES = _names("""
    Softmax SafeSoftmax LogSoftmax Logsumexp ScaledDotProductAttentionMath ScaledDotProductFlashAttention
    ScaledDotProductFlashAttentionForCpu ScaledDotProductEfficientAttention ScaledDotProductCudnnAttention
    ScaledDotProductFusedAttentionOverrideable NativeMultiHeadAttention
""")
"""Softmaxes and fused attention."""

FUSED_ATTENTION = frozenset(name for name in SOFTMAXES if name.startswith("ScaledDotProduct"))

STATISTICS = _names("""
    Std StdMean Var VarMean Norm LinalgVectorNorm LinalgMatrixNorm LinalgSvd Cdist CdistForward EuclideanDist
    PairwiseDistance CosineSimilarity
""")
"""Nodes that compute the scale of a norm, or its square."""

NORMS = STATISTICS | _names("""
    NativeLayerNorm FusedLayerNorm NativeGroupNorm FusedRmsNorm RmsNorm Renorm
""")

BATCH_NORMS = _names("NativeBatchNorm CudnnBatchNorm MiopenBatchNorm BatchNormImplIndex BatchNormWithUpdate")
"""Linear with running statistics; batch norms in training mode are refused when they are called."""

EXPONENTIALS = _names("Exp Exp2")
LOGARITHMS = _names("Log Log2 Log10")
POWERS = _names("Pow Rsqrt Sqrt Reciprocal")
"""Elementwise functions that turn a reduction into the scale of a norm."""

INVERSES = _names("Pow Rsqrt Reciprocal Div")
"""Functions whose result a norm multiplies by, rather than divides by."""

ACTIVATIONS = (
    POWERS
    | EXPONENTIALS
    | LOGARITHMS
    | HOMOGENEOUS
    | _names("""
    Acos Acosh Asin Asinh Atan Atan2 Atanh Celu Clamp ClampMax ClampMin Cos Cosh Digamma Elu Erf Erfc Erfinv Expm1 Frac
    Gelu Glu GluJvp Hardshrink Hardsigmoid Hardswish Hardtanh Lgamma Log1P LogSigmoid LogSigmoidForward Logaddexp
    Logaddexp2 Logit Mish Relu6 Selu Sigmoid Silu Sin Sinc Sinh Softplus Softshrink SpecialErfcx SpecialExpm1
    SpecialLog1P SpecialXlogy Tan Tanh Threshold Xlogy SpecialI0E Round Floor Ceil Sgn Sign Trunc Fmod Remainder
""")
)
"""Elementwise nonlinear functions."""

LINEAR = MOVES | SUMS | REDUCTIONS | RUNNING_SUMS | RESAMPLINGS | SELECTIONS | BATCH_NORMS
"""Nodes that are jointly linear in all their live edges."""

MAX_NODES = 256
"""How many nodes a search for the provenance of a factor visits at most."""


def name_of(node: Any) -> str:
    """Return the operation of a node: `Mul` for `MulBackward0`, `Ratio` for the autograd function of that name."""
    kind = type(node)
    name = _known_names.get(kind)
    if name is None:
        name = str(node.name()).rpartition("::")[2].rstrip("0123456789").removesuffix("Backward")
        if kind.__name__ != "CppFunction":  # a type shared by different operations
            _known_names[kind] = name
    return name


_known_names: dict[type, str] = {}


def nodes_behind(outputs: Sequence[Tensor]) -> list[Any]:
    """Return all nodes of the graph that computed some outputs."""
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen: dict[Any, None] = dict.fromkeys(waiting)
    while waiting:
        for before, _ in waiting.pop().next_functions:
            if before is not None and before not in seen:
                seen[before] = None
                waiting.append(before)
    return list(seen)


def leaves_of(nodes: Iterable[Any]) -> list[Tensor]:
    """Return the leaves among the nodes of a graph, as tensors."""
    return [node.variable for node in nodes if type(node) is _LEAF]


def nodes_between(later: Sequence[Tensor], earlier: Sequence[Tensor]) -> set[Any]:
    """Return the nodes by which the later tensors were computed from the earlier ones."""
    ends = {x.grad_fn for x in earlier} | {None}
    waiting: list[Any] = [x.grad_fn for x in later if x.grad_fn not in ends] if earlier else []
    between = set(waiting)
    while waiting:
        for before, _ in waiting.pop().next_functions:
            if before not in ends and before not in between:
                between.add(before)
                waiting.append(before)
    return between


def is_linear(node: Any) -> bool:
    """Return whether a node is linear without an added constant: it only moves, scales or sums live values."""
    name, edges = name_of(node), live_edges(node)
    if name in SUMS:
        return len(edges) == len(node.next_functions) and len(edges) > 1
    is_scaled = name in ("Mul", "Div") and len(edges) == 1
    return is_scaled or name in MOVES or name in REDUCTIONS or name in SELECTIONS


def edge_of(x: Tensor) -> Edge | None:
    """Return the edge of a tensor in the graph; None for leaves and tensors that are not live."""
    return None if x.grad_fn is None else (x.grad_fn, x.output_nr)


def live_edges(node: Any, which: Iterable[int] | None = None) -> list[Edge]:
    """Return the edges that carry a gradient, of all inputs or of those with the given indices."""
    edges = node.next_functions
    chosen = edges if which is None else [edges[i] for i in which if i < len(edges)]
    return [edge for edge in chosen if edge[0] is not None]


def is_own(node: Any) -> bool:
    """Return whether a node is an autograd function of this package."""
    return isinstance(node, BackwardCFunction) and type(node)._forward_cls.__module__.startswith(OWN)  # type: ignore[attr-defined]


def elementwise_of(node: Any) -> str:
    """Return the name of a node's elementwise function, by torch or by a rule; "" for other nodes."""
    name = name_of(node)
    if name == "Pow":
        return _kind_of_power(node)
    if name in ACTIVATIONS:
        return name
    function = str(getattr(node, "elementwise", "")) if is_own(node) else ""
    return _CALLS.get(function, function.capitalize())


_CALLS = {"__rdiv__": "Div", "truediv": "Div", "__rpow__": "Exp", "__pow__": "Pow", "float_power": "Pow"}
"""Torch calls, as autograd functions of rules name them -> the name of their node, where the two differ."""


def _kind_of_power(node: Any) -> str:
    """Return `Exp` for number**tensor, `Square` for tensor**p with p >= 1, and `Pow` for other powers."""
    if type(node).__name__ == "PowBackward2":
        return "Exp"
    exponent = getattr(node, "_saved_exponent", None)
    return "Square" if isinstance(exponent, (int, float)) and exponent >= 1 else "Pow"


def _composed(outer: str, inner: str) -> str:
    """Return the name of outer(inner(x)): powers of powers are powers, exp(c log x) is a power, others are `Mixed`."""
    if outer in POWERS or outer == "Div":
        return outer if inner in POWERS or inner in _BOUNDS else "Mixed"
    return "Pow" if outer in EXPONENTIALS and inner in LOGARITHMS else inner


_BOUNDS = _names("Square Abs Clamp ClampMin ClampMax Clamp_min Clamp_max")
"""Functions that may be applied between a reduction and a power of it, such as a clamp to an epsilon."""


def is_exponential(node: Any) -> bool:
    """Return whether a node computes exp(c x), by torch or by a rule."""
    if is_own(node):
        return bool(getattr(node, "exponential", False))
    # PowBackward2 is number**tensor.
    return name_of(node) in EXPONENTIALS or type(node).__name__ == "PowBackward2"


class Provenance:
    """How a factor was computed, by elementwise functions and reductions, from the outputs of layers.

    The search passes through views, sums, products, reductions and elementwise functions, and ends at matrix products,
    norms, softmaxes and leaves.
    """

    def __init__(self, edge: Edge | None, function: str = "") -> None:
        """Search from an edge; `function` is applied to its tensor afterwards, such as "Div" to a divisor."""
        self.is_reduced = False
        """Whether it was computed from a reduction."""
        self.scaling = ""
        """The name of the elementwise function applied to a reduction. Norms and softmaxes scale by a power of one."""
        self.is_of_scores = False
        """Whether it is a nonlinear function of sums of products of live tensors, like attention probabilities."""
        self.exponentials: set[Edge] = set()
        """The arguments of the exponentials that it is an elementwise function of."""
        self.summed: set[Edge] = set()
        """The arguments of the exponentials that were reduced."""
        self.exponential_nodes: set[Any] = set()
        self.products: set[Any] = set()
        """The nodes on the way that are products of two live tensors."""
        self.is_mixed = False
        """Whether it contains a product or a quotient of live tensors after its reduction."""
        self.is_sum = False
        """Whether it contains a sum of live tensors after its reduction."""
        self.is_log_softmax = False
        """Whether it was computed from a log-softmax."""
        self.is_log_normalised = False
        """Whether it was computed from the logarithm of a softmax's denominator."""
        if edge is not None:
            self._search(edge, function)

    def _search(self, start: Edge, function: str) -> None:
        waiting: list[tuple[Any, str, bool]] = [(start[0], function, False)]
        seen: set[tuple[Any, str, bool]] = set()
        while waiting and len(seen) < MAX_NODES:
            step = waiting.pop()
            if step in seen:
                continue
            seen.add(step)
            node, function, reduced = step
            role = _roles.get(type(node)) or _role_of(node)
            if role == _END:
                continue
            if role == _INSPECT:
                function, reduced, edges = self._inspect(node, function, reduced)
            else:
                edges = [edge for edge in node.next_functions if edge[0] is not None]
                if role == _REDUCTION:
                    self.is_reduced = reduced = True
                    self.scaling = self.scaling or function
                elif role == _SUM and len(edges) > 1:
                    if reduced or not function:
                        continue  # a residual stream
                    self.is_sum = True
            waiting += [(before, function, reduced) for before, _ in edges]

    def _inspect(self, node: Any, function: str, reduced: bool) -> tuple[str, bool, list[Edge]]:
        """Evaluate a node; return the function so far, whether it is applied to a reduction, and the next edges."""
        name, edges = name_of(node), live_edges(node)
        elementwise = elementwise_of(node)
        if elementwise:
            if is_exponential(node):
                (self.summed if reduced else self.exponentials).update(edges)
                self.exponential_nodes.add(node)
            return _composed(function, elementwise), reduced, edges
        if name in STATISTICS or name == "Logsumexp":
            self.is_reduced = True
            self.scaling = self.scaling or function or (name if name in STATISTICS else "")
            self.is_log_normalised |= name == "Logsumexp"
            return function or name, True, edges
        if name in MATRIX_PRODUCTS:
            if len(live_edges(node, MATRIX_PRODUCTS[name])) > 1:
                # A sum of products: a tensor with itself in a norm, queries with keys in attention.
                self.is_reduced = True
                self.scaling = self.scaling or function
                self.is_of_scores |= bool(function)
            return function, reduced, []
        if name in RUNNING_SUMS:
            self.is_reduced = True
            return "", True, edges
        if name == "LogSoftmax":
            self.is_log_normalised = self.is_log_softmax = True
            return function, reduced, []
        if name == "Div":
            if len(edges) == 1 and live_edges(node, (1,)):
                return (
                    "Div",
                    reduced,
                    edges,
                )  # a reciprocal; a quotient of live tensors was checked when it was computed
            self.is_mixed |= len(edges) > 1 and not reduced
            return function, reduced, live_edges(node, (0,))
        if name in PRODUCTS:
            if len(set(live_edges(node, PRODUCTS[name]))) > 1:
                self.products.add(node)
                self.is_mixed |= not reduced
                self.is_of_scores |= reduced and bool(self.scaling)
            return function, reduced, edges
        return function, reduced, edges if name in ("ScaleGradient", "WithValue") else []


_END, _INSPECT, _REDUCTION, _SUM, _MOVE = range(1, 6)
_roles: dict[type, int] = {}
"""Type of a node -> what a search does there: end, inspect it by `_inspect`, record a reduction or a sum, go on."""


def _role_of(node: Any) -> int:
    name = name_of(node)
    if name in REDUCTIONS or name in EXTREMA:
        role = _REDUCTION
    elif name in SUMS:
        role = _SUM
    elif name in MOVES or name in SELECTIONS:
        role = _MOVE
    elif is_own(node) or name in ACTIVATIONS or name in STATISTICS or name in MATRIX_PRODUCTS or name in PRODUCTS:
        role = _INSPECT
    else:
        role = _INSPECT if name in RUNNING_SUMS or name in ("Logsumexp", "LogSoftmax", "Div") else _END
    if type(node).__name__ != "CppFunction":
        _roles[type(node)] = role
    return role
