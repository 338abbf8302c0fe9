"""The rules, and the named rule sets made of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import Error

RULES: Mapping[str, Mapping[str, str]] = {
    "attention": {
        "gradient": "the softmax is differentiated, as in Gradient x Input",
        "freeze": "the probabilities are constants; relevance flows through the values alone (AH-rule)",
        "uniform": "relevance halves at each product: values 1/2, queries and keys 1/4; the softmax is differentiated",
    },
    "norm": {
        "gradient": "the scale is differentiated",
        "freeze": "the scale is a constant, the mean is not (LN-rule)",
    },
    "activation": {
        "gradient": "differentiated",
        "ratio": "x times the constant act(x) / x, its limit at 0",
    },
    "product": {
        "gradient": "differentiated: both factors get the whole relevance, which counts it twice",
        "half": "each factor gets half",
        "freeze-gate": "a factor that comes out of an activation is a constant; without one, each gets half",
    },
    "bilinear": {
        "refuse": "a matrix product of two live tensors that belongs to no recognised attention is refused",
        "half": "each factor gets half, in attention that is not recognised too",
        "gradient": "differentiated, in attention that is not recognised too",
    },
    "linear": {
        "zero": "the gradient, LRP-0",
        "epsilon": "LRP-epsilon: outputs near 0 give less",
        "gamma": "LRP-gamma: positive weights count 1 + gamma times, the output stays as it is",
    },
}
"""Kind of operation -> rule -> what it says. `conserva.engine.operations` holds what each one does."""


@dataclass(frozen=True)
class RuleSet:
    """One rule for each kind of operation, with the strength of the linear rules."""

    name: str
    attention: str = "gradient"
    norm: str = "gradient"
    activation: str = "gradient"
    product: str = "gradient"
    bilinear: str = "refuse"
    linear: str = "zero"
    epsilon: float = 1e-6
    gamma: float = 0.01

    def __post_init__(self) -> None:
        for kind, rules in RULES.items():
            rule = getattr(self, kind)
            if rule not in rules:
                raise Error(f"{kind}={rule!r} is no rule for {kind}: choose one of {', '.join(map(repr, rules))}.")
        for strength in ("epsilon", "gamma"):
            value = getattr(self, strength)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise Error(f"{strength}={value!r} must be a positive number.")
        if self.activation == "ratio" and self.norm == "gradient":
            # A norm written out as pow, mean, rsqrt begins like an activation: only a frozen scale tells them apart.
            raise Error(
                "activation='ratio' with norm='gradient' has no one meaning for norms written out as several "
                "operations: add norm='freeze', or take activation='gradient'."
            )

    @property
    def closes(self) -> bool:
        """Whether the ledger closes under these rules: every nonlinear factor is frozen or shared."""
        frozen = self.attention == self.norm == "freeze" and self.activation == "ratio"
        return frozen and self.product != "gradient" and self.bilinear != "gradient" and self.linear == "zero"


_PAPER = {"ah": ("freeze", "gradient"), "ln": ("gradient", "freeze"), "ah+ln": ("freeze", "freeze")}

RULE_SETS: Mapping[str, RuleSet] = {
    "gi": RuleSet("gi"),
    **{name: RuleSet(name, attention=attention, norm=norm) for name, (attention, norm) in _PAPER.items()},
    "exact": RuleSet("exact", attention="freeze", norm="freeze", activation="ratio", product="half"),
    "attnlrp": RuleSet(
        "attnlrp", attention="uniform", norm="freeze", activation="ratio", product="half", linear="epsilon"
    ),
}
"""The named rule sets. Names are exact: `ah+ln` is Ali et al.'s (2022) rule and nothing more."""


def rule_set(base: str | RuleSet = "gi", **changes: str | float) -> RuleSet:
    """Return a named rule set, or one composed by the user: `rule_set("exact", product="freeze-gate")`."""
    if isinstance(base, str):
        if base not in RULE_SETS:
            raise Error(f"rules={base!r} names no rule set: choose one of {', '.join(map(repr, RULE_SETS))}.")
        base = RULE_SETS[base]
    elif not isinstance(base, RuleSet):
        raise Error(f"rules={base!r} is neither the name of a rule set nor a RuleSet.")
    if not changes:
        return base
    known = {field.name for field in dataclasses.fields(RuleSet)} - {"name"}
    if unknown := sorted(set(changes) - known):
        raise Error(
            f"{unknown[0]}={changes[unknown[0]]!r} is no part of a rule set: it has {', '.join(sorted(known))}."
        )
    strengths = {"epsilon", "gamma"} & set(changes)
    if "linear" not in changes and len(strengths) == 1:
        changes["linear"] = strengths.pop()  # naming the strength means the rule
    spelled = ", ".join(f"{key}={value}" for key, value in sorted(changes.items()))
    return dataclasses.replace(base, name=f"{base.name} ({spelled})", **changes)  # type: ignore[arg-type]
