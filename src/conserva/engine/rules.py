"""The propagation rules, and the named rule sets.

A rule defines how relevance is propagated through one kind of operation. Its attributes are all that the engine knows
of it: a rule that the attributes describe is one entry of the table here. One that computes something new also needs
its computation in `engine/operations`. A new rule set is one entry of `RULE_SETS`; every rule set is also a method.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._util.nearest import did_you_mean
from ..errors import Error


@dataclass(frozen=True)
class Rule:
    """How relevance is propagated through one kind of operation."""

    name: str
    meaning: str
    differentiates: bool = False
    """The operation is differentiated by autograd as usual."""
    freezes: bool = False
    """The nonlinear factor is detached: attention probabilities, a norm's scale, an activation's ratio act(x) / x."""
    follows: bool = False
    """Elementwise functions are followed over several calls, so that `x * sigmoid(x)` is read as one activation."""
    shares: bool = False
    """Each factor of a product gets half of the relevance."""
    freezes_gate: bool = False
    """A factor that is the output of an activation is detached; without one, each factor gets half."""
    refuses: bool = False
    """The operation raises an error."""
    temperature: float = 1.0
    """The softmax is differentiated as if its inputs were divided by this number, and its output multiplied by it."""
    conserves: bool = False
    """The relevance of the operation's inputs and constants sums to the relevance of its output."""


_ALL: Mapping[str, tuple[Rule, ...]] = {
    "attention": (
        Rule("gradient", "the softmax is differentiated, as in Gradient x Input", differentiates=True),
        Rule(
            "freeze",
            "the probabilities are constants; relevance flows through the values alone (AH-rule)",
            freezes=True,
            conserves=True,
        ),
        Rule(
            "uniform",
            "relevance halves at each product: values 1/2, queries and keys 1/4; the softmax is differentiated",
            shares=True,
        ),
        Rule(
            "tempered",
            "as uniform, with the softmax differentiated at temperature 2, so that large probabilities saturate less",
            shares=True,
            temperature=2.0,
        ),
        Rule(
            "refuse",
            "for models without attention: a softmax or an attention of live tensors is refused",
            freezes=True,
            refuses=True,
            conserves=True,
        ),
    ),
    "norm": (
        Rule("gradient", "the scale is differentiated", differentiates=True),
        Rule("freeze", "the scale is a constant, the mean is not (LN-rule)", freezes=True, conserves=True),
    ),
    "activation": (
        Rule("gradient", "differentiated", differentiates=True),
        Rule("ratio", "x times the constant act(x) / x, its limit at 0", freezes=True, follows=True, conserves=True),
    ),
    "product": (
        Rule(
            "gradient",
            "differentiated: each factor gets the whole relevance, so that it is counted twice",
            differentiates=True,
        ),
        Rule("half", "each factor gets half", shares=True, conserves=True),
        Rule(
            "freeze-gate",
            "a factor that is the output of an activation is a constant; without one, each factor gets half",
            freezes_gate=True,
            conserves=True,
        ),
    ),
    "bilinear": (
        Rule(
            "refuse",
            "a matrix product of two live tensors outside of recognised attention is refused",
            refuses=True,
            conserves=True,
        ),
        Rule("half", "each factor gets half, also in unrecognised attention", shares=True, conserves=True),
        Rule("gradient", "differentiated, also in unrecognised attention", differentiates=True),
    ),
    "linear": (
        Rule("zero", "the gradient, LRP-0", differentiates=True, conserves=True),
        Rule("epsilon", "LRP-epsilon: outputs near 0 propagate less relevance"),
        Rule("gamma", "LRP-gamma: positive weights count 1 + gamma times, the output is unchanged"),
    ),
    "residual": (
        Rule("gradient", "branch and trunk both get the whole gradient", differentiates=True, conserves=True),
        Rule("gamma", "LRP-gamma: where branch and trunk cancel, both get less", conserves=True),
    ),
}

RULES: Mapping[str, Mapping[str, Rule]] = {kind: {rule.name: rule for rule in rules} for kind, rules in _ALL.items()}
"""The rules by kind of operation and name. `conserva.engine.operations` implements them."""


STRENGTHS: Mapping[str, str] = {"epsilon": "linear", "gamma": "linear", "residual_gamma": "residual"}
"""The parameters of rules -> the kind of operation whose rule has them."""


@dataclass(frozen=True)
class RuleSet:
    """One rule for each kind of operation, and the parameters of the rules for linear layers and residual sums.

    Examples
    --------
    >>> chosen = conserva.rules("exact", product="freeze-gate").rules
    >>> chosen.product.name, chosen.closes
    ('freeze-gate', True)
    """

    name: str
    summary: str
    attention: Rule
    norm: Rule
    activation: Rule
    product: Rule
    bilinear: Rule
    linear: Rule
    residual: Rule
    epsilon: float = 1e-6
    gamma: float = 0.01
    residual_gamma: float = 1.0

    def __post_init__(self) -> None:
        for strength in STRENGTHS:
            value = getattr(self, strength)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise Error(f"{strength}={value!r} must be a positive number; for LRP-0, leave it out.")
        if self.activation.follows and not self.norm.freezes:
            # A norm written as pow, mean and rsqrt begins like an activation, and is recognised only if it is frozen.
            raise Error(
                f"activation={self.activation.name!r} with norm={self.norm.name!r} is ambiguous for norms that are "
                "written as several operations: add norm='freeze', or use activation='gradient'."
            )

    @property
    def closes(self) -> bool:
        """Whether the ledger closes under these rules, with a gap of rounding errors only."""
        return all(getattr(self, kind).conserves for kind in RULES)

    def to_dict(self) -> dict[str, Any]:
        """Return the name of the set, the names of the rules by kind, and their parameters."""
        names = {kind: getattr(self, kind).name for kind in RULES}
        return {"name": self.name, **names, **{name: getattr(self, name) for name in STRENGTHS}}


def _named(name: str, summary: str, **chosen: str) -> RuleSet:
    """Return a rule set; kinds without a chosen rule have the one of Gradient x Input."""
    defaults = {"bilinear": "refuse", "linear": "zero"}
    names = {kind: chosen.get(kind, defaults.get(kind, "gradient")) for kind in RULES}
    rules: dict[str, Any] = {kind: RULES[kind][rule] for kind, rule in names.items()}
    return RuleSet(name, summary, **rules)


RULE_SETS: Mapping[str, RuleSet] = {
    rules.name: rules
    for rules in (
        _named("gi", "Gradient x Input: the plain gradient"),
        _named("ah", "LRP with attention heads read as linear (Ali et al. 2022)", attention="freeze"),
        _named("ln", "LRP with norms read as linear (Ali et al. 2022)", norm="freeze"),
        _named("ah+ln", "LRP with both: the paper's method", attention="freeze", norm="freeze"),
        _named(
            "exact",
            "ah+ln, with activations and products read as linear too: the ledger closes. The default",
            attention="freeze",
            norm="freeze",
            activation="ratio",
            product="half",
        ),
        _named(
            "attnlrp",
            "AttnLRP (Achtibat et al. 2024): relevance also through queries and keys",
            attention="uniform",
            norm="freeze",
            activation="ratio",
            product="half",
            linear="epsilon",
        ),
        _named(
            "gim",
            "Gradient Interaction Modifications (Edin et al. 2025): halves, frozen norms, a softmax of temperature 2",
            attention="tempered",
            norm="freeze",
            product="half",
        ),
        _named(
            "exact+res",
            "exact, with LRP-gamma at residual sums: parts that cancel get less. The ledger closes",
            attention="freeze",
            norm="freeze",
            activation="ratio",
            product="half",
            residual="gamma",
        ),
        _named(
            "attnlrp+res",
            "AttnLRP with LRP-gamma at residual sums (ResLRP, Berend et al. 2026)",
            attention="uniform",
            norm="freeze",
            activation="ratio",
            product="half",
            linear="epsilon",
            residual="gamma",
        ),
    )
}
"""The named rule sets. A published name has the published rules only: `ah+ln` is that of Ali et al. (2022)."""


DEFAULT = "exact"
"""The default rule set."""


def rule_set(base: str | RuleSet = DEFAULT, **changes: str | float) -> RuleSet:
    """Return a named rule set, or a modified one: `rule_set("exact", product="freeze-gate")`.

    Parameters
    ----------
    base
        A rule set or its name.
    changes
        The name of another rule for a kind of operation, epsilon, gamma, or residual_gamma. Epsilon alone also selects
        the rule linear="epsilon", and likewise gamma; residual_gamma selects residual="gamma".
    """
    if isinstance(base, str):
        if base not in RULE_SETS:
            hint = did_you_mean(base, RULE_SETS)
            raise Error(f"rules={base!r} is unknown.{hint} Choose one of {', '.join(map(repr, RULE_SETS))}.")
        base = RULE_SETS[base]
    elif not isinstance(base, RuleSet):
        raise Error(f"rules={base!r} is neither the name of a rule set nor a RuleSet.")
    if not changes:
        return base
    known = {*RULES, *STRENGTHS}
    if unknown := sorted(set(changes) - known):
        raise Error(
            f"unknown option {unknown[0]}={changes[unknown[0]]!r} of a rule set; its options: "
            f"{', '.join(sorted(known))}."
        )
    strengths = {"epsilon", "gamma"} & set(changes)
    if "linear" not in changes and len(strengths) == 1:
        changes["linear"] = strengths.pop()  # epsilon=... or gamma=... selects the rule of that name
    if "residual_gamma" in changes:
        changes.setdefault("residual", "gamma")
    spelled = ", ".join(f"{key}={value}" for key, value in sorted(changes.items()))
    chosen = {key: _rule(key, value) if key in RULES else value for key, value in changes.items()}
    return dataclasses.replace(base, name=f"{base.name} ({spelled})", **chosen)  # type: ignore[arg-type]


def _rule(kind: str, name: str | float) -> Rule:
    rule = RULES[kind].get(name) if isinstance(name, str) else None
    if rule is None:
        raise Error(f"{kind}={name!r} is not a rule for {kind}: choose one of {', '.join(map(repr, RULES[kind]))}.")
    return rule
