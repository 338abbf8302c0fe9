"""The computation as autograd recorded it, searched for what no rule reached."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from .coverage import Coverage
from .errors import NotApplicable
from .ledger import Books
from .rules import RuleSet

_NODES = {
    "attention": ("SoftmaxBackward", "SafeSoftmaxBackward", "ScaledDotProduct", "NativeMultiHeadAttention"),
    "norm": ("NativeLayerNorm", "NativeGroupNorm", "FusedRmsNorm", "RsqrtBackward", "SqrtBackward", "StdBackward"),
}
"""Kind of operation -> how its nodes are called in a graph."""

_MATRIX_PRODUCTS = ("MmBackward", "AddmmBackward", "BmmBackward", "UnsafeViewBackward")
_OWN = __name__.partition(".")[0] + "."


def _name(node: Any) -> str:
    return str(node.name()).rpartition("::")[2]


def walk(roots: Sequence[Any]) -> Iterator[Any]:
    """Yield every node of the graph behind some nodes."""
    seen, waiting = set(), [root for root in roots if root is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        waiting.extend(before for before, _ in node.next_functions if before is not None)


def refuse_sealed(modules: Mapping[str, nn.Module]) -> None:
    """Raise if a part of the model runs where the context cannot see it."""
    for name, module in modules.items():
        where = f"module {name!r}" if name else "the model"
        if isinstance(module, torch.jit.ScriptModule):
            raise NotApplicable(
                f"{where} is scripted ({type(module).__name__}), so no rule reaches it: load it as plain PyTorch."
            )
        if "_orig_mod" in module._modules or module._compiled_call_impl is not None:
            raise NotApplicable(
                f"{where} is compiled, so no rule reaches it: explain the model as it was before torch.compile."
            )


def check_reached(
    model: nn.Module, outputs: Sequence[Tensor], rules: RuleSet, coverage: Coverage, trusted: Collection[str]
) -> list[Any]:
    """Raise if attention, norms or foreign code in the graph met no rule; return the graph's nodes."""
    nodes = list(walk([output.grad_fn for output in outputs]))
    for node in nodes:
        _refuse_foreign(node, trusted)
        if isinstance(parameter := getattr(node, "variable", None), nn.Parameter):
            name = next((name for name, p in model.named_parameters() if p is parameter), "of another module")
            raise NotApplicable(
                f"Parameter {name!r} was used outside the context's sight, so it is not read as a constant."
            )
    for kind, names in _NODES.items():
        missed = sorted({_name(node) for node in nodes if _name(node).startswith(names) and not _value_path_only(node)})
        if missed and getattr(rules, kind) == "freeze":
            raise NotApplicable(
                f"{kind} of {type(model).__name__} was not reached: the graph has {', '.join(missed)} under rule "
                f"'freeze'. It was computed outside the context, or by a call that conserva does not read."
            )
    if not coverage.attention_seen:
        raise NotApplicable(_no_attention(model))
    return nodes


def _value_path_only(node: Any) -> bool:
    """Tell whether this is fused attention with queries and keys cut off, as the AH-rule leaves it."""
    if not _name(node).startswith("ScaledDotProduct"):
        return False
    (query, _), (key, _) = node.next_functions[:2]
    return query is None and key is None


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


def _refuse_foreign(node: Any, trusted: Collection[str]) -> None:
    name = _name(node)
    if "CheckpointFunction" in name:
        raise NotApplicable(
            "The model uses reentrant checkpoints, which run outside the context: use use_reentrant=False."
        )
    if "CompiledFunction" in name or "DifferentiableGraph" in name:
        raise NotApplicable(
            f"A part of the model is compiled or scripted ({name}), so no rule reaches it: run it as plain PyTorch."
        )
    if isinstance(node, BackwardCFunction):
        function = type(node)._forward_cls  # type: ignore[attr-defined]
        if not function.__module__.startswith(_OWN) and function.__name__ not in trusted:
            raise NotApplicable(
                f"{function.__module__}.{function.__name__} is an autograd function that conserva cannot look into. "
                f"To take its own gradient there pass trusted=[{function.__name__!r}]: right if it is linear, or an "
                "activation under a rule set that differentiates activations. Attention and norms must be torch's own."
            )


def cancel_inside_softmax(nodes: Sequence[Any], books: Books) -> None:
    """Take masks and position biases inside a softmax off the books: they are a part of the attention."""
    inside: set[Any] = set()
    for node in nodes:
        if not _name(node).startswith("SoftmaxBackward"):
            continue
        waiting = [before for before, _ in node.next_functions]
        while waiting:
            below = waiting.pop()
            if below is None or below in inside or _name(below).startswith(_MATRIX_PRODUCTS):
                continue
            inside.add(below)
            if not _name(below).startswith("BaddbmmBackward"):
                waiting.extend(before for before, _ in below.next_functions)
    books.cancel(inside)
