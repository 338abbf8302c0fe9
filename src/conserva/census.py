"""The computation as autograd recorded it, searched for what no rule reached."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from .coverage import Coverage
from .errors import NotApplicable
from .ledger import Books
from .packed import is_packed_product, packed_biases
from .rules import RuleSet

_NODES = {
    "attention": ("SoftmaxBackward", "SafeSoftmaxBackward", "ScaledDotProduct", "NativeMultiHeadAttention"),
    "norm": ("NativeLayerNorm", "NativeGroupNorm", "FusedRmsNorm", "RsqrtBackward", "SqrtBackward", "StdBackward"),
}
"""Kind of operation -> how its nodes are called in a graph."""

_MATRIX_PRODUCTS = ("MmBackward", "AddmmBackward", "BmmBackward", "UnsafeViewBackward")
_QUANTISED = "torch.ao.nn.quantized"
_OWN = __name__.partition(".")[0] + "."


def _name(node: Any) -> str:
    return str(node.name()).rpartition("::")[2]


def _graph(outputs: Sequence[Tensor]) -> list[Any]:
    """Return every node of the graph behind some outputs."""
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen: dict[Any, None] = dict.fromkeys(waiting)
    while waiting:
        for before, _ in waiting.pop().next_functions:
            if before is not None and before not in seen:
                seen[before] = None
                waiting.append(before)
    return list(seen)


def _by_kind(nodes: Sequence[Any]) -> Iterable[list[Any]]:
    """Return the nodes, those of one kind together: what can be told from the kind is then asked once for all."""
    kinds: dict[Any, list[Any]] = defaultdict(list)
    for node in nodes:
        kinds[type(node)].append(node)
    # Nodes that torch has no type for share one: only their names tell them apart.
    for shared in [kind for kind in kinds if kind.__name__ == "CppFunction"]:
        for node in kinds.pop(shared):
            kinds[_name(node)].append(node)
    return kinds.values()


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return a model's modules by name, as torch names and orders them, in a fraction of the time that torch takes."""
    found: dict[nn.Module, str] = {}

    def add(module: nn.Module, name: str) -> None:
        if module not in found:
            found[module] = name
            for own, child in module._modules.items():
                if child is not None:
                    add(child, f"{name}.{own}" if name else own)

    add(model, "")
    return {name: module for module, name in found.items()}


def refuse_sealed(modules: Mapping[str, nn.Module]) -> None:
    """Raise if a part of the model runs where the context cannot see it."""
    for name, module in modules.items():
        scripted = isinstance(module, torch.jit.ScriptModule)
        quantised = type(module).__module__.startswith(_QUANTISED)
        compiled = "_orig_mod" in module._modules or module._compiled_call_impl is not None
        if not (scripted or quantised or compiled):
            continue
        where = f"module {name!r}" if name else "the model"
        if quantised:
            raise NotApplicable(
                f"{where} computes in whole numbers ({type(module).__name__}), without gradients: explain the model "
                "as it was before it was quantised."
            )
        if scripted:
            raise NotApplicable(
                f"{where} is scripted ({type(module).__name__}), so no rule reaches it: load it as plain PyTorch."
            )
        raise NotApplicable(
            f"{where} is compiled, so no rule reaches it: explain the model as it was before torch.compile."
        )


def check_reached(
    model: nn.Module, outputs: Sequence[Tensor], rules: RuleSet, coverage: Coverage, trusted: Collection[str]
) -> list[Any]:
    """Raise if attention, norms or foreign code in the graph met no rule; return the graph's nodes."""
    nodes = _graph(outputs)
    kinds = _by_kind(nodes)
    known = set(map(id, packed_biases(model.modules()).values()))
    for alike in kinds:
        _refuse_foreign(alike[0], trusted)
        held = [node.variable for node in alike] if hasattr(alike[0], "variable") else []
        for parameter in (one for one in held if isinstance(one, nn.Parameter) and id(one) not in known):
            name = next((name for name, p in model.named_parameters() if p is parameter), "of another module")
            raise NotApplicable(
                f"Parameter {name!r} was used outside the context's sight, so it is not read as a constant."
            )
    for kind, names in _NODES.items():
        if getattr(rules, kind) != "freeze":
            continue
        there = [alike for alike in kinds if _name(alike[0]).startswith(names)]
        missed = sorted({_name(alike[0]) for alike in there if not all(map(_value_path_only, alike))})
        if missed:
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
    if "CompiledFunction" in name or "ApplyTemplate" in name or "DifferentiableGraph" in name:
        raise NotApplicable(
            f"A part of the model is compiled or scripted ({name}), so no rule reaches it: run it as plain PyTorch."
        )
    if isinstance(node, BackwardCFunction):
        function = type(node)._forward_cls  # type: ignore[attr-defined]
        known = function.__module__.startswith(_OWN) or is_packed_product(function)
        if not known and function.__name__ not in trusted:
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
