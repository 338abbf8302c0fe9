"""Recognition of softmaxes and norms that are written in several calls.

A norm multiplies or divides a tensor by a function of a reduction, and a softmax divides exponentials by a reduction of
the same exponentials. Both are recognised when the product or the quotient is computed: the autograd graph shows how
its factors were computed, through casts, views, clones and in-place calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...errors import NotApplicable
from ..autograd_graph import INVERSES, Provenance, edge_of, is_own
from .tensors import live

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..autograd_graph import Edge
    from ..context import Propagation
    from ..rules import RuleSet

ATTENTION, NORM = "attention", "norm"
LATE, MINGLED = "late", "mingled"
"""Softmaxes and norms that cannot be frozen: values weighted by exponentials and divided by their sum only afterwards,
and a scale that is multiplied by another live tensor before it is applied."""
SHARE = "share of attention"
"""A factor computed from a softmax's denominator: the share of attention that goes elsewhere, such as to a sink."""


def kind_of_quotient(numerator: Edge | None, divisor: Edge | None) -> tuple[str, str]:
    """Return the kind of a quotient, "" if it is neither a softmax nor a norm, and the function of its divisor."""
    below = Provenance(divisor, "Div")
    if not below.is_reduced:
        of_several = below.is_sum and not below.exponentials.isdisjoint(Provenance(numerator).exponentials)
        return (ATTENTION, "a sum of exponentials") if of_several else ("", "")
    return _kind_of_scale(numerator, below), below.scaling


def kind_of_factor(numerator: Edge | None, made: Provenance) -> tuple[str, str]:
    """Return the kind of a product, "" if it is neither a softmax nor a norm, and the function of the factor.

    Parameters
    ----------
    numerator
        The tensor that is scaled.
    made
        How the other factor was computed.
    """
    if made.is_log_normalised and made.scaling:
        return (SHARE if made.is_of_scores else ""), made.scaling
    if made.scaling not in INVERSES:
        return "", ""
    return _kind_of_scale(numerator, made), made.scaling


def _kind_of_scale(numerator: Edge | None, made: Provenance) -> str:
    """Return the kind of scale that a function of a reduction is for the numerator."""
    if not made.summed:
        return MINGLED if made.is_mixed else NORM
    above = Provenance(numerator)
    if made.summed.isdisjoint(above.exponentials) or above.products - made.products:
        return LATE
    return MINGLED if made.is_mixed else ATTENTION


def is_softmax_of_logarithms(x: Tensor) -> bool:
    """Return whether exp(x) is a softmax: the logarithm of the denominator was subtracted from `x`."""
    made = Provenance(edge_of(x), "Exp")
    if made.is_log_softmax and made.is_sum:
        raise NotApplicable(
            "The model computes exp of the sum of a log-softmax and another tensor that depends on the input, so that "
            "the softmax cannot be frozen separately. Multiply by the softmax instead."
        )
    return made.is_log_normalised or (made.scaling == "Pow" and bool(made.summed))


def is_watched(rules: RuleSet) -> bool:
    """Return whether a rule set needs to know which products and quotients are norms or softmaxes."""
    return not all(rule.differentiates for rule in (rules.attention, rules.norm, rules.activation))


def read_quotient(context: Propagation, function: Callable[..., Any], a: Any, b: Tensor, **kwargs: Any) -> Any:
    """Return `a / b` of a live divisor under the rule for softmaxes or norms; None if it is neither."""
    above = edge_of(a) if live(a) else None
    context.last_scale = None
    kind, scaling = kind_of_quotient(above, edge_of(b))
    return _read(context, function, kind, scaling, a, b, **kwargs)


def read_product(context: Propagation, function: Callable[..., Any], a: Tensor, b: Tensor) -> Any:
    """Return `a * b` of two live tensors under the rule for softmaxes or norms; None if it is neither."""
    if not is_watched(context.rules):
        return None
    for numerator, factor in ((a, b), (b, a)):
        if not _may_scale(factor, numerator):
            continue
        edge, known = edge_of(factor), context.last_scale
        made = Provenance(edge) if known is None or known[0] != edge else known[1]
        context.last_scale = None
        kind, scaling = kind_of_factor(edge_of(numerator), made)
        if kind:
            swapped = numerator is not a
            return _read(context, function, kind, scaling, numerator, factor, swapped=swapped)
    return None


def _may_scale(factor: Tensor, numerator: Tensor) -> bool:
    """Return whether a factor may be the result of a reduction: smaller than the numerator, or expanded."""
    is_smaller = factor.shape != numerator.shape and factor.numel() <= numerator.numel()  # both may be empty
    return is_smaller or 0 in factor.stride()


def _read(
    context: Propagation,
    function: Callable[..., Any],
    kind: str,
    scaling: str,
    numerator: Any,
    scale: Tensor,
    swapped: bool = False,
    **kwargs: Any,
) -> Any:
    if kind == SHARE and context.rules.attention.freezes:
        context.rule_for(ATTENTION, function, f"a share written out with {scaling.lower()}")
        scale = context.frozen(scale)
        return function(scale, numerator) if swapped else function(numerator, scale)
    if refusal := refusal_of(kind, context.rules):
        raise NotApplicable(refusal)
    if kind not in (ATTENTION, NORM):
        return None
    rule = context.rule_for(kind, function, f"written out with {scaling.lower()}" if scaling else "written out")
    if kind == ATTENTION:
        if rule.freezes:
            numerator, scale = context.frozen(numerator), context.frozen(scale)
        else:
            _differentiate(numerator, scale)
    elif rule.freezes:
        scale = context.frozen(scale)
    out = function(scale, numerator, **kwargs) if swapped else function(numerator, scale, **kwargs)
    if kind == ATTENTION and live(out):
        context.met_written_softmax(out)
    return out


def refusal_of(kind: str, rules: RuleSet) -> str:
    """Return why a kind of scale is refused under a rule set; "" if it is not."""
    if kind == LATE and not rules.attention.differentiates:
        return (
            "An attention of the model multiplies values by exponentials and divides by the sum of the exponentials "
            "afterwards, so that its probabilities are never computed. Divide first, or call torch.softmax."
        )
    if kind == MINGLED and (rules.norm.freezes or rules.attention.freezes):
        return (
            "The scale of a norm or a softmax is multiplied by another tensor that depends on the input before it is "
            "applied, so that it cannot be frozen separately. Apply the scale first, or call torch's norm or softmax."
        )
    return ""


def _differentiate(numerator: Any, scale: Tensor) -> None:
    """Make the exponentials of a softmax use their derivative instead of the ratio of the rule for activations."""
    for x in (numerator, scale):
        for node in Provenance(edge_of(x)).exponential_nodes:
            if is_own(node):
                node.is_differentiated = True
