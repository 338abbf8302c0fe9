"""Softmaxes and norms written in several calls, recognised by what they compute.

However it is spelled, a norm multiplies or divides a tensor by a function of a reduction, and a softmax divides
exponentials by a reduction of the same exponentials. Both are seen where the product or the quotient is taken: the
autograd graph tells how its factors were made, whatever casts, views, clones and in-place calls lie between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...errors import NotApplicable
from ..autograd_graph import INVERSES, Making, edge_of, is_own
from .tensors import live

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..autograd_graph import Edge
    from ..context import Propagation
    from ..rules import RuleSet

ATTENTION, NORM = "attention", "norm"
LATE, MINGLED = "late", "mingled"
"""Softmaxes and norms that are not taken apart: weighted values that are divided by the sum of their weights, and a
scale that other live tensors are multiplied into."""
SHARE = "share of attention"
"""A factor made of a softmax's denominator: which share of attention goes elsewhere, as to a sink."""


def kind_of_quotient(numerator: Edge | None, divisor: Edge | None) -> tuple[str, str]:
    """Return whether a quotient is a softmax, a norm or neither, and the function that made the divisor."""
    below = Making(divisor, "Div")
    if not below.is_reduced:
        of_several = below.is_sum and not below.exponentials.isdisjoint(Making(numerator).exponentials)
        return (ATTENTION, "a sum of exponentials") if of_several else ("", "")
    return _kind_of_scale(numerator, below), below.scaling


def kind_of_factor(numerator: Edge | None, made: Making) -> tuple[str, str]:
    """Return whether a factor scales the numerator as a softmax does, or as a norm does, and the function it is."""
    if made.is_log_normalised and made.scaling:
        return (SHARE if made.is_of_scores else ""), made.scaling
    if made.scaling not in INVERSES:
        return "", ""
    return _kind_of_scale(numerator, made), made.scaling


def _kind_of_scale(numerator: Edge | None, made: Making) -> str:
    """Return what a function of a reduction makes of the numerator."""
    if not made.summed:
        return MINGLED if made.is_mixed else NORM
    above = Making(numerator)
    if made.summed.isdisjoint(above.exponentials) or above.products - made.products:
        return LATE
    return MINGLED if made.is_mixed else ATTENTION


def is_softmax_of_logarithms(x: Tensor) -> bool:
    """Tell whether exp(x) is a softmax: `x` has the logarithm of its denominator taken off."""
    made = Making(edge_of(x), "Exp")
    if made.is_log_softmax and made.is_sum:
        raise NotApplicable(
            "The model takes exp of a log-softmax and another live tensor: a softmax times something else, of which "
            "neither can be frozen alone. Multiply the softmax instead."
        )
    return made.is_log_normalised or (made.scaling == "Pow" and bool(made.summed))


def is_watched(rules: RuleSet) -> bool:
    """Tell whether a rule set asks which products and quotients are norms or softmaxes."""
    return not all(one.differentiates for one in (rules.attention, rules.norm, rules.activation))


def read_quotient(context: Propagation, function: Callable[..., Any], a: Any, b: Tensor, **kwargs: Any) -> Any:
    """Return `a / b` of a live divisor as the softmax or the norm that it is; None if it is neither."""
    above = edge_of(a) if live(a) else None
    kind, made_by = kind_of_quotient(above, edge_of(b))
    return _read(context, function, kind, made_by, a, b, **kwargs)


def read_product(context: Propagation, function: Callable[..., Any], a: Tensor, b: Tensor) -> Any:
    """Return `a * b` of two live tensors as the softmax or the norm that it is; None if it is neither."""
    if not is_watched(context.rules):
        return None
    for numerator, factor in ((a, b), (b, a)):
        if not _may_scale(factor, numerator):
            continue
        kind, made_by = kind_of_factor(edge_of(numerator), Making(edge_of(factor)))
        if kind:
            swapped = numerator is not a
            return _read(context, function, kind, made_by, numerator, factor, swapped=swapped)
    return None


def _may_scale(factor: Tensor, numerator: Tensor) -> bool:
    """Tell whether a factor is smaller than what it scales, or repeats its elements, as the result of a reduction."""
    is_smaller = factor.shape != numerator.shape and factor.numel() <= numerator.numel()  # both may be empty
    return is_smaller or 0 in factor.stride()


def _read(
    context: Propagation,
    function: Callable[..., Any],
    kind: str,
    made_by: str,
    numerator: Any,
    scale: Tensor,
    swapped: bool = False,
    **kwargs: Any,
) -> Any:
    if kind == SHARE and context.rules.attention.freezes:
        context.meet(ATTENTION, function, f"a share written out with {made_by.lower()}")
        scale = context.frozen(scale)
        return function(scale, numerator) if swapped else function(numerator, scale)
    if refusal := refusal_of(kind, context.rules):
        raise NotApplicable(refusal)
    if kind not in (ATTENTION, NORM):
        return None
    rule = context.meet(kind, function, f"written out with {made_by.lower()}" if made_by else "written out")
    if kind == ATTENTION:
        if rule.freezes:
            numerator, scale = context.frozen(numerator), context.frozen(scale)
        else:
            _differentiate(numerator, scale)
    elif rule.freezes:
        scale = context.frozen(scale)
    out = function(scale, numerator, **kwargs) if swapped else function(numerator, scale, **kwargs)
    if kind == ATTENTION and live(out):
        context.written_softmaxes.append(out.grad_fn)
    return out


def refusal_of(kind: str, rules: RuleSet) -> str:
    """Return why a kind of scale is refused under a rule set, and nothing if it is not."""
    if kind == LATE and not rules.attention.differentiates:
        return (
            "An attention of the model multiplies values by exponentials and divides by the sum of the exponentials "
            "afterwards, so that its probabilities never exist. Divide first, or call torch.softmax."
        )
    if kind == MINGLED and (rules.norm.freezes or rules.attention.freezes):
        return (
            "The scale of a norm or a softmax is multiplied with another live tensor before it is applied, so that "
            "neither can be frozen alone. Apply the scale first, or call torch's own norm."
        )
    return ""


def _differentiate(numerator: Any, scale: Tensor) -> None:
    """Let the exponentials of a softmax pass their gradient, where a rule for activations would pass their ratio."""
    for x in (numerator, scale):
        for node in Making(edge_of(x)).exponential_nodes:
            if is_own(node):
                node.is_differentiated = True
