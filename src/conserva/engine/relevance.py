"""Forward under rules, one gradient, and R = x * dF/dx."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias, overload

import torch
from torch import Tensor, nn

from ..errors import Error
from . import checks, module_tree
from .constants import Unbatchable
from .context import Propagation, as_rule_set
from .inputs import Inputs
from .memory import AUTO, Plan, within_memory
from .passes import INPUTS, Pass, Relevance, device_of
from .rules import DEFAULT, RuleSet
from .targets import Target, of_sample, plain
from .untouched import untouched

Compute: TypeAlias = Callable[[Inputs], list[Relevance]]
Replay: TypeAlias = Callable[[Inputs, Sequence[Any], Compute], list[Relevance]]
"""Returns what a computation makes of a call's inputs, without computing it where the same was recorded before.

Its second argument distinguishes one way to explain from another: target, rules, and all other options.
"""


@overload
def relevance(
    model: nn.Module,
    inputs: Any,
    target: Target | Sequence[Target] | Tensor = ...,
    *,
    targets: None = ...,
    rules: str | RuleSet | Propagation = ...,
    at: str | Sequence[str] = ...,
    ledger: bool = ...,
    batch_dim: int = ...,
    trusted: Collection[str] = ...,
    checkpoint: str = ...,
) -> Relevance: ...


@overload
def relevance(
    model: nn.Module,
    inputs: Any,
    *,
    targets: Sequence[Target | Sequence[Target] | Tensor],
    rules: str | RuleSet | Propagation = ...,
    at: str | Sequence[str] = ...,
    ledger: bool = ...,
    batch_dim: int = ...,
    trusted: Collection[str] = ...,
    checkpoint: str = ...,
) -> list[Relevance]: ...


def relevance(
    model: nn.Module,
    inputs: Any,
    target: Target | Sequence[Target] | Tensor = None,
    *,
    targets: Sequence[Target | Sequence[Target] | Tensor] | None = None,
    rules: str | RuleSet | Propagation = DEFAULT,
    at: str | Sequence[str] = INPUTS,
    ledger: bool = True,
    batch_dim: int = 0,
    trusted: Collection[str] = (),
    checkpoint: str = AUTO,
) -> Relevance | list[Relevance]:
    """Split a model's output among its inputs.

    Parameters
    ----------
    model
        Any PyTorch Transformer, in evaluation mode. It is not changed.
    inputs
        What it is called with: a tokenizer's output or another mapping, a tensor, or a tuple of arguments. Numbers are
        explained unless their name ends in "mask" or "labels". Of ids, the first argument without a name is, and by
        name those that end in "input_ids" or are the model's main input. All other integers are where the model looks
        them up: a Hugging Face model in a table of words, as T5 does with `labels`, others in any table; but not if
        their name ends in "mask", "position_ids", "positions", "type_ids", "segments", "lengths" or the like.
        Relevance has the shape of the input, with one axis more in `values`, however the model moves its ids before it
        looks them up; where it makes other numbers of them, as by sorting, that is refused.
    target
        What to explain: a class index, a label, a contrast "a - b", an index tuple into a sample's output, a function
        of the output that returns a number for each sample, or None for the highest score. A list has one a sample.
    targets
        Several targets of the same inputs, from one forward pass; a list of results comes back.
    rules
        A rule set's name, or what `conserva.rules(...)` returned.
    at
        Where relevance is read: "inputs" (word embeddings, pixels, ...), "embeddings" (the output of a Hugging Face
        model's embedding block, the choice of Ali et al. 2022), or names of modules, with wildcards, at once.
    ledger
        Whether to keep the books.
    batch_dim
        The axis of the inputs that holds the samples.
    trusted
        Names of foreign autograd functions that are linear in their input, such as those of quantised layers.
    checkpoint
        How what the gradient needs is kept: "whole" on the device; "recompute", where activations are made anew from
        what is smaller; "offload", where the rest goes to the host's memory; or "auto": whole while there is room, then
        leaner, and leaner still if memory runs out. The result is the same and says in `plan` what was done.

    Returns
    -------
    Relevance or list of Relevance
        The relevance of every element of the inputs, and the ledger; a list of them for several `targets`.

    Examples
    --------
    >>> task = conserva.load()
    >>> inputs = task.tokenizer(["a joy.", "a bore."], return_tensors="pt")
    >>> result = conserva.relevance(task.model, inputs, "positive")
    >>> result.scores().shape == inputs["input_ids"].shape
    True
    >>> bool((result.ledger.gap.abs() < 1e-4).all())
    True
    """
    return explained(model, inputs, target, targets, rules, at, ledger, batch_dim, trusted, checkpoint, None)


def explained(
    model: nn.Module,
    inputs: Any,
    target: Target | Sequence[Target] | Tensor,
    targets: Sequence[Target | Sequence[Target] | Tensor] | None,
    rules: str | RuleSet | Propagation,
    at: str | Sequence[str],
    ledger: bool,
    batch_dim: int,
    trusted: Collection[str],
    checkpoint: str,
    replay: Replay | None,
) -> Relevance | list[Relevance]:
    """Do what `relevance` does, by `replay` where it is given."""
    if not isinstance(model, nn.Module):
        raise Error(f"model={model!r} is not a torch.nn.Module.")
    modules = module_tree.modules_of(model)
    module_tree.refuse_opaque_modules(modules)
    rule_set, call = as_rule_set(rules), Inputs.of(model, inputs, batch_dim)
    wanted = [plain(one) for one in ([target] if targets is None else targets)]
    if not wanted:
        raise Error("targets=[] asks for nothing: give at least one target.")
    places = [at] if isinstance(at, str) else list(at)

    def compute(given: Inputs) -> list[Relevance]:
        def run(plan: Plan | None) -> list[Relevance]:
            return _explain(Pass(model, modules, rule_set, places, ledger, trusted, plan), given, wanted)

        return within_memory(checkpoint, device_of(model, given), run)

    with untouched(model, modules), torch.inference_mode(False), torch.enable_grad(), checks.together():
        if replay is None:
            results = compute(call)
        else:
            how = (wanted, list(rule_set.to_dict().values()), places, ledger, sorted(trusted), checkpoint)
            results = replay(call, how, compute)
    return results[0] if targets is None else results


def _explain(explain: Pass, call: Inputs, wanted: list[Target | Sequence[Target] | Tensor]) -> list[Relevance]:
    """Explain all samples at once, or one at a time where the books cannot tell them apart."""
    try:
        return explain(call, wanted)
    except Unbatchable:
        pass
    samples = range(call.samples())
    singles = [explain(call.sample(i), [of_sample(one, i) for one in wanted]) for i in samples]
    return [Relevance.side_by_side([single[k] for single in singles], call.batch_dim) for k in range(len(wanted))]
