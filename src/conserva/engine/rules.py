"""The rules, and the named rule sets made of them.

A rule says how one kind of operation is read. What the engine must know of a rule is an attribute of it, so that a new
rule is one entry of `RULES`. A new rule set is one entry of `RULE_SETS`; every rule set is a method, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Error


@dataclass(frozen=True)
class Rule:
    """How one kind of operation is read."""

    name: str
    meaning: str
    differentiates: bool = False
    """The operation is left to autograd."""
    freezes: bool = False
    """Its nonlinear factor is a constant: attention probabilities, a norm's scale, an activation's ratio act(x) / x."""
    follows: bool = False
    """Elementwise functions are followed over several calls, so that `x * sigmoid(x)` is read as one activation."""
    shares: bool = False
    """Each factor of a product gets half of the relevance."""
    freezes_gate: bool = False
    """A factor that is the output of an activation is a constant; without one, each factor gets half."""
    refuses: bool = False
    """The operation is refused."""
    conserves: bool = False
    """As much relevance leaves the operation as enters it, but for what constants take."""


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
            "differentiated: both factors get the whole relevance, which counts it twice",
            differentiates=True,
        ),
        Rule("half", "each factor gets half", shares=True, conserves=True),
        Rule(
            "freeze-gate",
            "a factor that is the output of an activation is a constant; without one, each gets half",
            freezes_gate=True,
            conserves=True,
        ),
    ),
    "bilinear": (
        Rule(
            "refuse",
            "a matrix product of two live tensors that belongs to no recognised attention is refused",
            refuses=True,
            conserves=True,
        ),
        Rule("half", "each factor gets half, in attention that is not recognised too", shares=True, conserves=True),
        Rule("gradient", "differentiated, in attention that is not recognised too", differentiates=True),
    ),
    "linear": (
        Rule("zero", "the gradient, LRP-0", differentiates=True, conserves=True),
        Rule("epsilon", "LRP-epsilon: outputs near 0 give less"),
        Rule("gamma", "LRP-gamma: positive weights count 1 + gamma times, the output stays as it is"),
    ),
}

RULES: Mapping[str, Mapping[str, Rule]] = {kind: {rule.name: rule for rule in rules} for kind, rules in _ALL.items()}
"""Kind of operation -> name -> rule. `conserva.engine.operations` holds what each one does."""


@dataclass(frozen=True)
class RuleSet:
    """One rule for each kind of operation, with the strengths of the rules for linear layers.

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
    epsilon: float = 1e-6
    gamma: float = 0.01

    def __post_init__(self) -> None:
        for strength in ("epsilon", "gamma"):
            value = getattr(self, strength)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise Error(f"{strength}={value!r} must be a positive number: leave it out for LRP-0.")
        if self.activation.follows and not self.norm.freezes:
            # A norm written out as pow, mean, rsqrt begins like an activation: only a frozen scale tells them apart.
            raise Error(
                f"activation={self.activation.name!r} with norm={self.norm.name!r} is ambiguous for norms written out "
                "as several operations: add norm='freeze', or take activation='gradient'."
            )

    @property
    def closes(self) -> bool:
        """Whether the ledger closes under these rules."""
        return all(getattr(self, kind).conserves for kind in RULES)

    def to_dict(self) -> dict[str, Any]:
        """Return the names of the rules by kind, and the strengths."""
        names = {kind: getattr(self, kind).name for kind in RULES}
        return {"name": self.name, **names, "epsilon": self.epsilon, "gamma": self.gamma}


def _named(name: str, summary: str, **chosen: str) -> RuleSet:
    """Return a rule set in which kinds without a rule are read as the plain gradient does."""
    plain = {"bilinear": "refuse", "linear": "zero"}
    names = {kind: chosen.get(kind, plain.get(kind, "gradient")) for kind in RULES}
    rules: dict[str, Any] = {kind: RULES[kind][rule] for kind, rule in names.items()}
    return RuleSet(name, summary, **rules)


RULE_SETS: Mapping[str, RuleSet] = {
    one.name: one
    for one in (
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
    )
}
"""The named rule sets. Names are exact: `ah+ln` is Ali et al.'s (2022) rule and nothing more."""


DEFAULT = "exact"
"""The rule set that is used where none is named."""


def rule_set(base: str | RuleSet = DEFAULT, **changes: str | float) -> RuleSet:
    """Return a named rule set, or one composed by the user: `rule_set("exact", product="freeze-gate")`."""
    if isinstance(base, str):
        if base not in RULE_SETS:
            raise Error(f"rules={base!r} names no rule set: choose one of {', '.join(map(repr, RULE_SETS))}.")
        base = RULE_SETS[base]
    elif not isinstance(base, RuleSet):
        raise Error(f"rules={base!r} is neither the name of a rule set nor a RuleSet.")
    if not changes:
        return base
    known = {*RULES, "epsilon", "gamma"}
    if unknown := sorted(set(changes) - known):
        raise Error(
            f"{unknown[0]}={changes[unknown[0]]!r} is not a part of a rule set: it has {', '.join(sorted(known))}."
        )
    strengths = {"epsilon", "gamma"} & set(changes)
    if "linear" not in changes and len(strengths) == 1:
        changes["linear"] = strengths.pop()  # naming the strength means the rule
    spelled = ", ".join(f"{key}={value}" for key, value in sorted(changes.items()))
    chosen = {key: _rule(key, value) if key in RULES else value for key, value in changes.items()}
    return dataclasses.replace(base, name=f"{base.name} ({spelled})", **chosen)  # type: ignore[arg-type]


def _rule(kind: str, name: str | float) -> Rule:
    found = RULES[kind].get(name) if isinstance(name, str) else None
    if found is None:
        raise Error(f"{kind}={name!r} is not a rule for {kind}: choose one of {', '.join(map(repr, RULES[kind]))}.")
    return found
