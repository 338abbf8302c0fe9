"""Ways to explain one model, each as its own documents show it: all return a score for each token.

Every way but ours works on `Subject.scores`, a function of word embeddings, so that all of them read the same forward.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import conserva
from conserva.engine.passes import Relevance


@dataclass(frozen=True)
class Subject:
    """What is explained: one class of a model that reads these inputs."""

    model: nn.Module
    frozen: nn.Module
    """The same weights, which want no gradient."""
    inputs: Mapping[str, Tensor]
    scores: Callable[[nn.Module, Tensor], Tensor]
    """A network and word embeddings -> samples x classes."""
    target: int
    place: int | tuple[int, ...]
    """The same class, as an index into a sample's output."""

    def embeddings(self) -> Tensor:
        return self.frozen.get_input_embeddings()(self.inputs["input_ids"])  # type: ignore[operator,no-any-return]


def without_gradients(model: nn.Module) -> nn.Module:
    """Return a twin that shares the weights and wants no gradient of them."""
    shared = {id(one): nn.Parameter(one.detach(), requires_grad=False) for one in model.parameters()}
    return copy.deepcopy(model, shared)  # type: ignore[arg-type]


def forward(subject: Subject) -> Tensor:
    with torch.no_grad():
        return subject.scores(subject.frozen, subject.embeddings())


def gradient_times_input(subject: Subject) -> Tensor:
    x = subject.embeddings().requires_grad_()
    number = subject.scores(subject.frozen, x)[:, subject.target].sum()
    [grad] = torch.autograd.grad(number, x)
    return (x * grad).detach().sum(-1)


class DetachOnly(TorchFunctionMode):
    """AH and LN by detaching alone: queries and keys of the fused attention, and what a norm divides by."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.nn.functional.scaled_dot_product_attention:
            query, key, *others = args
            return function(query.detach(), key.detach(), *others, **kwargs)
        found = function(*args, **kwargs)
        return found.detach() if function is torch.rsqrt else found


def detach_only(subject: Subject) -> Tensor:
    x = subject.embeddings().requires_grad_()
    with DetachOnly():
        number = subject.scores(subject.frozen, x)[:, subject.target].sum()
    [grad] = torch.autograd.grad(number, x)
    return (x * grad).detach().sum(-1)


def captum(subject: Subject) -> Tensor:
    from captum.attr import InputXGradient

    method = InputXGradient(lambda x: subject.scores(subject.model, x))
    return method.attribute(subject.embeddings().requires_grad_(), target=subject.target).detach().sum(-1)  # type: ignore[no-any-return]


def autolrp(subject: Subject) -> Tensor:
    import autolrp

    rules = autolrp.LRPConfig(rule={**autolrp.BASE, **autolrp.CPLRP})
    x = autolrp.tensor(subject.embeddings().clone())
    subject.scores(subject.model, x)[:, subject.target].sum().lrp(config=rules)  # type: ignore[attr-defined]
    return x.relevance.sum(-1)  # type: ignore[no-any-return]


def ours(
    subject: Subject, rules: str, ledger: bool = False, fast: conserva.Replaying | None = None
) -> Callable[[], Tensor]:
    """Return an explanation by conserva as a loop over inputs has it: each call reads the tokens in another order.

    Inside a `conserva.replaying` block the first calls record, before any is timed.
    """
    orders = [{**subject.inputs, "input_ids": subject.inputs["input_ids"].roll(i, 1).contiguous()} for i in range(8)]
    following = itertools.cycle(orders)
    waiting = 0 if fast is None else len(orders)

    def run() -> Tensor:
        nonlocal waiting
        while waiting:
            waiting -= 1
            relevance(subject, rules, ledger, inputs=next(following), fast=fast)
        return relevance(subject, rules, ledger, inputs=next(following), fast=fast).scores().detach()

    return run


def relevance(
    subject: Subject,
    rules: str,
    ledger: bool = False,
    checkpoint: str = "auto",
    inputs: Mapping[str, Tensor] | None = None,
    fast: conserva.Replaying | None = None,
) -> Relevance:
    """Explain by conserva; what does not fit under any plan is out of memory, as everyone else has it."""
    how: dict[str, Any] = {"rules": rules, "ledger": ledger, "checkpoint": checkpoint}
    given = inputs or subject.inputs
    try:
        if fast is not None:
            return fast.relevance(given, subject.place, **how)
        return conserva.relevance(subject.model, given, subject.place, **how)
    except conserva.Error as error:
        if "does not fit into the memory" not in str(error):
            raise
    raise torch.OutOfMemoryError(f"conserva {rules}")


def single_call(subject: Subject, rules: str, ledger: bool = False, checkpoint: str = "auto") -> Tensor:
    """Explain by conserva with nothing recorded."""
    return relevance(subject, rules, ledger, checkpoint).scores().detach()
