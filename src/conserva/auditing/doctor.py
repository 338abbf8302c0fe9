"""Checks of whether the explanations of a model can be trusted, to run before its scores are used."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.context import Propagation, as_rule_set
from ..engine.relevance import relevance
from ..engine.rules import DEFAULT, RuleSet
from ..engine.targets import Target
from ..engine.untouched import untouched
from ..errors import Error, NotApplicable
from .second_opinion import STEP, Opinion, verify

LARGEST_COPY = 500_000_000
"""The maximum number of parameters of a model that is copied to float64 for the second opinion."""

LIMITS = {torch.float64: 1e-3, torch.float32: 1e-2}
"""Dtype -> the largest error of a second opinion that is attributed to rounding; models may use other dtypes inside."""

LARGEST_GAP = 1e-3
"""The largest share of a gap in its ledger that is attributed to rounding if the rules freeze all factors."""

LARGEST_DIFFERENCE = 1e-3
"""The largest accepted difference between two attention implementations, relative to the largest score."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    passed: bool | None
    """None if the check does not apply."""
    figure: float | None
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary."""
        return asdict(self)


def examine(
    model: nn.Module,
    inputs: Any,
    target: Target | list[Target] | Tensor = None,
    *,
    rules: str | RuleSet | Propagation = DEFAULT,
    trusted: tuple[str, ...] = (),
) -> list[Finding]:
    """Check the explanations of a model on given inputs.

    Parameters
    ----------
    model, inputs, target, rules, trusted
        As in `conserva.relevance`.

    Returns
    -------
    list of Finding
        One for each check: the graph, the ledger, the second opinion, and another attention implementation.
    """
    rule_set = as_rule_set(rules)
    try:
        result = relevance(model, inputs, target, rules=rule_set, trusted=trusted)
    except NotApplicable as error:
        return [Finding("graph", False, None, str(error))]
    calls = sum(met.times for met in result.coverage)
    findings = [Finding("graph", True, None, f"every node is linear or met its rule; {calls} calls met one")]
    frozen = all(rule.freezes for rule in (rule_set.attention, rule_set.norm, rule_set.activation))
    if frozen and result.ledger is not None:
        gap = float(result.ledger.gap_share.max())
        text = f"the gap is {gap:.1e} of the sum of its ledger's absolute values"
        findings.append(Finding("ledger", gap <= LARGEST_GAP, gap, text))
    else:
        findings.append(Finding("ledger", None, None, f"{rule_set.name!r} does not promise that the ledger closes"))
    findings.append(_second_opinion(model, inputs, target, rule_set, trusted))
    findings.append(_other_attention(model, inputs, target, rule_set, trusted, result.scores()))
    return findings


def _second_opinion(model: nn.Module, inputs: Any, target: Any, rules: RuleSet, trusted: tuple[str, ...]) -> Finding:
    opinion, dtype = _verified(model, inputs, target, rules, trusted, STEP)
    limit = LIMITS.get(dtype, LIMITS[torch.float32])
    if opinion.error > limit:  # a smaller step is less likely to cross a kink, such as that of a ReLU
        opinion, dtype = _verified(model, inputs, target, rules, trusted, STEP / 10)
    passed = opinion.error <= limit and opinion.rebuilt <= limit
    text = (
        f"scaled inputs change the output as the scores predict, up to {opinion.error:.1e} of them"
        if passed
        else f"scaled inputs do not change the output as the scores predict, by {opinion.error:.1e} of them: do not "
        "use these scores"
    )
    return Finding("second opinion", passed, opinion.error, f"{text} ({str(dtype).removeprefix('torch.')})")


def _verified(
    model: nn.Module, inputs: Any, target: Any, rules: RuleSet, trusted: tuple[str, ...], step: float
) -> tuple[Opinion, torch.dtype]:
    """Return a second opinion in float64, or in the model's dtype if a float64 copy is too large or does not run."""
    count = sum(x.numel() for x in model.parameters())
    own = next((x.dtype for x in model.parameters() if x.is_floating_point()), torch.float32)
    if own != torch.float64 and count <= LARGEST_COPY:
        with contextlib.suppress(Exception):  # some kernels, such as those of experts, do not support float64
            double = copy.deepcopy(model).double()
            return verify(double, _in_double(inputs), target, rules=rules, step=step, trusted=trusted), torch.float64
    return verify(model, inputs, target, rules=rules, step=step, trusted=trusted), own


def _in_double(inputs: Any) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.double() if inputs.is_floating_point() else inputs
    if isinstance(inputs, tuple):
        return tuple(map(_in_double, inputs))
    return {name: _in_double(x) for name, x in inputs.items()} if hasattr(inputs, "items") else inputs


def _other_attention(
    model: nn.Module, inputs: Any, target: Any, rules: RuleSet, trusted: tuple[str, ...], scores: Tensor
) -> Finding:
    """Compare the scores with those of the same model with another attention implementation."""
    check = "other attention"
    with untouched(model), _switched(model) as other:
        if not other:
            return Finding(check, None, None, "the model has one implementation of its attention")
        try:
            again = relevance(model, inputs, target, rules=rules, trusted=trusted).scores()
        except Error as error:
            return Finding(check, False, None, f"with {other!r} attention: {error}")
    difference = float((again - scores).abs().max() / scores.abs().max()) if scores.abs().max() > 0 else 0.0
    passed = difference <= LARGEST_DIFFERENCE
    text = f"with {other!r} attention the scores differ by {difference:.1e} of the largest"
    return Finding(check, passed, difference, text)


@contextlib.contextmanager
def _switched(model: nn.Module) -> Iterator[str]:
    """Switch a Hugging Face model between eager and SDPA attention; yield the new one, or "" if that is impossible."""
    before = getattr(getattr(model, "config", None), "_attn_implementation", None)
    switch: Any = getattr(model, "set_attn_implementation", None)
    other = {"sdpa": "eager", "eager": "sdpa"}.get(str(before), "")
    if switch is None or not other:
        yield ""
        return
    try:
        switch(other)
    except (ValueError, NotImplementedError, ImportError):
        yield ""
        return
    try:
        yield other
    finally:
        switch(before)
