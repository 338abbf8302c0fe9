"""TransformerLens: relevance at the hook points of a bridge, by their names and in the shapes of its caches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from .._util.nearest import did_you_mean
from ..engine.context import Propagation, as_rule_set, current
from ..engine.hooks import hooked
from ..engine.module_tree import Modules
from ..engine.passes import INPUTS, Relevance
from ..engine.relevance import relevance
from ..engine.rules import DEFAULT, RuleSet
from ..engine.targets import Target
from ..errors import Error


def relevance_at_hooks(
    bridge: nn.Module,
    inputs: Any,
    target: Target | Sequence[Target] | Tensor = None,
    *,
    hooks: str | Sequence[str],
    rules: str | RuleSet | Propagation = DEFAULT,
    trusted: Collection[str] = (),
) -> Relevance:
    """Distribute an output of a TransformerLens bridge over its inputs, and read the relevance at hook points.

    The forward pass is that of `bridge(inputs)`, with all hooks that are attached: an ablated or patched run is
    explained as it is.

    Parameters
    ----------
    bridge
        A `TransformerBridge`, in evaluation mode. It is not modified.
    inputs
        Tokens, as `bridge.to_tokens` returns them, or the bridge's arguments as a mapping, such as
        `{"input": tokens, "attention_mask": mask}`.
    target
        What to explain, as in `conserva.relevance`: for a language model `(-1, token)`, the logit of a token at the
        last position.
    hooks
        Names of hook points, as in a cache of the bridge: "blocks.0.hook_resid_post".
    rules, trusted
        As in `conserva.relevance`.

    Returns
    -------
    Relevance
        The result of `conserva.relevance`. After the inputs, its `values` have the relevance of each hook point, under
        its name and in the shape of the activation in the cache.

    Examples
    --------
    >>> import torch
    >>> from transformer_lens import TransformerBridge, TransformerBridgeConfig
    >>> from conserva.integrations.transformer_lens import relevance_at_hooks
    >>> sizes = dict(n_layers=2, d_model=16, d_head=8, n_heads=2, d_mlp=32, n_ctx=8, d_vocab=50, act_fn="gelu", seed=0)
    >>> bridge = TransformerBridge.boot_native(TransformerBridgeConfig(**sizes)).eval()
    >>> result = relevance_at_hooks(bridge, torch.tensor([[3, 1, 4]]), (-1, 7), hooks="blocks.0.attn.hook_z")
    >>> result.scores("blocks.0.attn.hook_z").shape  # batch x positions x heads
    torch.Size([1, 3, 2])
    """
    points = getattr(bridge, "hook_dict", None)
    if not isinstance(bridge, nn.Module) or not isinstance(points, Mapping):
        raise Error(
            f"bridge is {type(bridge).__name__}, which has no hook points: give a TransformerBridge of TransformerLens "
            "(pip install 'conserva[transformer-lens]')."
        )
    if not isinstance(hooks, (str, list, tuple)):
        raise Error(f"hooks={hooks!r}: give the name of a hook point, or a list of names.")
    wanted, rule_set = [hooks] if isinstance(hooks, str) else list(hooks), as_rule_set(rules)
    names = Modules.of(bridge).names
    for hook in wanted:
        if hook not in points or points[hook] not in names:
            raise Error(f"hooks={hook!r} is not a hook point of the bridge.{did_you_mean(str(hook), points)}")
    sites = {hook: names[points[hook]] for hook in wanted}
    active: set[str] = set()
    checks = [(points[hook], _check(hook, rule_set.name, active)) for hook in wanted]
    with hooked(checks):
        result = relevance(
            bridge, inputs, target, rules=rule_set, at=[INPUTS, *dict.fromkeys(sites.values())], trusted=trusted
        )
    values = {name: result.values[name] for name in result.values if name.partition("#")[0] not in sites.values()}
    for hook, site in sites.items():
        calls = [name for name in result.values if name.partition("#")[0] == site]
        if not calls:
            raise Error(
                f"hooks={hook!r} did not fire in this forward pass. Some hook points need a setting of the bridge "
                "first, such as bridge.set_use_attn_result(True)."
            )
        if hook in active and not any(bool(result.values[name].any()) for name in calls):
            raise Error(
                f"No relevance reaches {hook!r} under rules={rule_set.name!r}: what is computed from it is a constant "
                "under these rules, as attention probabilities are under 'exact', or the output does not depend on it."
            )
        convert = points[hook].hook_conversion
        for name in calls:
            value = result.values[name]
            values[hook + name.removeprefix(site)] = value if convert is None else convert.convert(value)
    return dataclasses.replace(result, values=values)


def _check(hook: str, rules: str, active: set[str]) -> Callable[..., None]:
    """Return a forward hook that refuses a constant, and adds the name to `active` if its activation is not zero."""

    def check(module: nn.Module, args: Any, output: Any) -> None:
        if current() is None:
            return
        if not isinstance(output, Tensor) or not output.is_floating_point():
            raise Error(f"{hook!r} has no floating-point activation: name a hook point after the embedding.")
        if not output.requires_grad:
            raise Error(
                f"The activation at {hook!r} is a constant under rules={rules!r}, so that no relevance of the inputs "
                "passes through it. Such are position embeddings, whose relevance is in the ledger; attention "
                "probabilities under rules that freeze them; and values that the bridge computes only for its hooks, "
                "as those of norms at 'hook_scale' and 'hook_normalized'."
            )
        if bool(output.detach().any()):
            active.add(hook)

    return check
