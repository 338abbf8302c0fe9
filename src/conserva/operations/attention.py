"""Attention: the softmax of eager attention and of routers, and the fused call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import Error
from .live import frozen, live, scale_gradient

if TYPE_CHECKING:
    from ..propagation import Propagation
    from .live import Reader


def softmax(context: Propagation, function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """Read a softmax, or the logarithm of its denominator. The products around it are read as matrix products."""
    context.coverage.attention_seen = True
    freeze = live(input) and context.meet("attention", function) == "freeze"
    return function(frozen(input) if freeze else input, *args, **kwargs)


def fused_attention(
    context: Propagation,
    function: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **kwargs: Any,
) -> Any:
    """Read `scaled_dot_product_attention`, whatever its mask, scale and grouping of heads."""
    context.coverage.attention_seen = True
    if live(query) or live(key) or live(value):
        if dropout_p > 0:
            raise Error(f"The model drops attention at random (dropout_p={dropout_p}): call model.eval() first.")
        rule = context.meet("attention", function)
        if rule == "freeze":
            query, key = frozen(query), frozen(key)
            attn_mask = frozen(attn_mask) if live(attn_mask) else attn_mask
        elif rule == "uniform":
            query, key, value = scale_gradient(query, 1 / 4), scale_gradient(key, 1 / 4), scale_gradient(value, 1 / 2)
    return function(query, key, value, attn_mask, dropout_p, is_causal, **kwargs)


READERS: dict[str, Reader] = {
    "softmax": softmax,
    "logsumexp": softmax,
    "scaled_dot_product_attention": fused_attention,
}
