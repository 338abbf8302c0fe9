"""`conserva.relevance`: a forward pass under the rules, one backward pass, and R = x * dF/dx."""

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
from .single_samples import check_outputs
from .targets import Target, of_sample, plain
from .untouched import untouched

Compute: TypeAlias = Callable[[Inputs], list[Relevance]]
Replay: TypeAlias = Callable[[Inputs, Sequence[Any], Compute], list[Relevance]]
"""Runs a computation on inputs, or replays it if it was captured before.

The second argument is a cache key: the target, the rules, and all other options.
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
    """Distribute a model's output over its inputs.

    Parameters
    ----------
    model
        Any PyTorch Transformer, in evaluation mode. It is not modified.
    inputs
        The model's arguments: a tokenizer's output or another mapping, a tensor, or a tuple of positional arguments.
        Floating-point tensors are explained unless their name ends in "mask" or "labels". Integer tensors are explained
        if they are the first positional argument, their name ends in "input_ids", or they are the model's
        `main_input_name`. Other integer tensors are explained if the model uses them as indices of an embedding table
        (for Hugging Face models the word embeddings, as T5 does with `labels`), unless their name ends in "mask",
        "position_ids", "positions", "type_ids", "segments", "lengths" or similar. Relevance has the shape of the input,
        with one more dimension in `values`, even if the model rearranges its ids before the lookup. A model that
        computes other ids from them, for example by sorting, raises an error.
    target
        What to explain: a class index, a label, a contrast "a - b", an index tuple into a sample's output, a function
        of the output that returns one number per sample, or None for the highest score. A list gives one per sample.
    targets
        Several targets for the same inputs, explained from one forward pass. The result is then a list.
    rules
        The name of a rule set, or the result of `conserva.rules(...)`.
    at
        Where to read relevance: "inputs" (word embeddings, pixels, ...), "embeddings" (the output of a Hugging Face
        model's embedding block, as in Ali et al. 2022), or the names of modules, with wildcards. A list reads at
        several. Next to "inputs", wildcards skip modules whose output does not depend on the inputs.
    ledger
        Whether to compute the ledger.
    batch_dim
        The batch dimension of the inputs.
    trusted
        Names of custom autograd functions that are linear in their input, such as those of quantised layers.
    checkpoint
        How activations are stored for the backward pass: "whole", all on the device; "recompute", activations are
        recomputed from smaller tensors; "offload", in addition the rest is moved to host memory; "auto", all on the
        device while memory lasts, with the others as fallbacks. The result is the same; its `plan` says what was used.

    Returns
    -------
    Relevance or list of Relevance
        The relevance of every element of the inputs, and the ledger. A list if `targets` is given.

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
    """Implement `relevance`. If `replay` is given, it runs the computation."""
    if not isinstance(model, nn.Module):
        raise Error(f"model={model!r} is not a torch.nn.Module.")
    modules = module_tree.Modules.of(model)
    module_tree.refuse_opaque_modules(modules)
    rule_set = as_rule_set(rules)
    call = inputs if isinstance(inputs, Inputs) else Inputs.of(model, inputs, batch_dim)
    wanted = [plain(each) for each in ([target] if targets is None else targets)]
    if not wanted:
        raise Error("targets=[] is empty: give at least one target.")
    sites = [at] if isinstance(at, str) else list(at)

    def compute(given: Inputs) -> list[Relevance]:
        def run(plan: Plan | None) -> list[Relevance]:
            return _explain(Pass(model, modules, rule_set, sites, ledger, trusted, plan), given, wanted)

        return within_memory(checkpoint, device_of(model, given), run)

    with untouched(model, modules), torch.inference_mode(False), torch.enable_grad(), checks.together():
        if replay is None:
            results = compute(call)
        else:
            key = (wanted, list(rule_set.to_dict().values()), sites, ledger, sorted(trusted), checkpoint)
            results = replay(call, key, compute)
    return results[0] if targets is None else results


def _explain(explain: Pass, call: Inputs, wanted: list[Target | Sequence[Target] | Tensor]) -> list[Relevance]:
    """Explain all samples in one batch, or one at a time if their constants cannot be separated by sample."""
    try:
        return explain(call, wanted)
    except Unbatchable:
        pass
    samples = range(call.samples())
    singles = [explain(call.sample(i), [of_sample(target, i) for target in wanted]) for i in samples]
    found = [Relevance.side_by_side([single[k] for single in singles], call.batch_dim) for k in range(len(wanted))]
    outputs, ledgers = [each.output for each in found], [each.ledger for each in found]
    check_outputs(explain.model, call, wanted, outputs, ledgers)
    return found
