"""The registry of methods, and the parser of their options. It imports no method: torch takes seconds to import."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from .._util.nearest import did_you_mean
from ..engine.rules import RULE_SETS, RuleSet, rule_set
from ..errors import Error

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..engine.context import Propagation
    from .attribution import Attribution

MethodLike: TypeAlias = "str | RuleSet | Propagation"
"""A method as given by the user: its name, optionally with options, or a rule set."""


class Apply(Protocol):
    """The signature of a method's function, with its options bound."""

    def __call__(self, model: nn.Module, inputs: Mapping[str, Tensor], target: Any) -> Attribution:
        """Return the scores of a batch of inputs for one target, or for a list with one target per sample."""


@dataclass(frozen=True)
class Method:
    """A method with its options bound."""

    name: str
    """The name, including the options that differ from their defaults."""
    summary: str
    apply: Apply
    options: Mapping[str, Any] = field(default_factory=dict)
    rules: RuleSet | None = None
    """The rule set, if the method is one."""


@dataclass(frozen=True)
class Option:
    """An option of a method."""

    default: Any
    kind: type[int] | type[float] | tuple[str, ...]
    """The type of its values, or all values that can be chosen."""
    or_number: bool = False
    """Whether a whole number can be given in place of the values that can be chosen."""

    def parsed(self, text: str, given: str, name: str) -> Any:
        """Return the value in a text; `given` is the method as the user gave it, `name` that of the option."""
        if isinstance(self.kind, tuple):
            if text in self.kind:
                return text
            if self.or_number and text.isdecimal():
                return int(text)
            number = " or a whole number" if self.or_number else ""
            raise Error(f"method={given!r}: {name}={text} is not one of {', '.join(self.kind)}{number}.")
        if text == "None" and self.default is None:
            return None
        try:
            value = self.kind(text)
            if not math.isfinite(value):
                raise ValueError
            return value
        except (ValueError, OverflowError):
            noun = "finite number" if self.kind is float else "whole number"
            raise Error(f"method={given!r}: {name}={text} is not a {noun}.") from None


@dataclass(frozen=True)
class _Entry:
    """A method: its function as "module:function" of this package, and the function's keyword-only arguments."""

    summary: str
    function: str | None
    """None for a rule set."""
    options: Mapping[str, Option] = field(default_factory=dict)


_ROWS = {"rows": Option("read", ("read", "all"))}
_RULES = {
    "at": Option("inputs", ("inputs", "embeddings")),
    "gamma": Option(0.0, float),
    "bilinear": Option("refuse", ("refuse", "half", "gradient")),
}


def _rule_options(rules: RuleSet) -> dict[str, Option]:
    strength = 0.0 if rules.residual.differentiates else rules.residual_gamma
    return {**_RULES, "residual": Option(strength, float)}


_ALL: Mapping[str, _Entry] = {
    "random": _Entry("a random order of the features, as a baseline", "random_order:random", {"seed": Option(0, int)}),
    **{name: _Entry(rules.summary, None, _rule_options(rules)) for name, rules in RULE_SETS.items()},
    "ig": _Entry(
        "Integrated Gradients (Sundararajan et al. 2017), with its completeness gap",
        "integrated:ig",
        {"steps": Option(50, int), "baseline": Option(None, int)},
    ),
    "path": _Entry(
        "a rule set averaged along the path from a baseline to the input",
        "integrated:path",
        {
            "rules": Option("exact", tuple(RULE_SETS)),
            "steps": Option(3, int),
            "baseline": Option("mean", ("mean", "zero", "mask", "pad"), or_number=True),
        },
    ),
    "a-last": _Entry("attention of the last layer, averaged over heads", "attention:a_last", _ROWS),
    "rollout": _Entry("attention rollout through all layers (Abnar & Zuidema 2020)", "attention:rollout", _ROWS),
    "a-flow": _Entry("attention as a maximum flow (Abnar & Zuidema 2020)", "attention:a_flow", _ROWS),
    "gae": _Entry(
        "attention weighted by its gradient, layer upon layer (Chefer et al., ICCV 2021)",
        "gae:gae",
        {"variant": Option("definition", ("definition", "rollout"))},
    ),
    "chefer": _Entry(
        "LRP of attention weighted by its gradient, rolled out (Chefer et al., CVPR 2021)",
        "chefer:chefer",
        {"normalise": Option("no", ("no", "yes")), "start": Option(0, int)},
    ),
    "partial-lrp": _Entry(
        "LRP down to the last layer's attention (Voita et al. 2019, as in Chefer et al.)", "chefer:partial_lrp"
    ),
    "attn-gradcam": _Entry(
        "Grad-CAM on the last layer's attention (as in Chefer et al., CVPR 2021)", "gae:attn_gradcam"
    ),
}
"""The methods by name."""


def methods() -> dict[str, str]:
    """List the methods.

    Returns
    -------
    dict of str
        The name of every method, with a one-line summary. `conserva.explain` takes a name, or `name:option=value`.

    Examples
    --------
    >>> list(conserva.methods())[:5]
    ['random', 'gi', 'ah', 'ln', 'ah+ln']
    """
    return {name: entry.summary for name, entry in _ALL.items()}


def options(name: str) -> dict[str, Any]:
    """Return the options of a method with their default values."""
    return {key: option.default for key, option in _ALL[name].options.items()}


def parsed(given: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a method with its options; raise an `Error` if it is unknown or has other options."""
    name, *chosen = given.split(":")
    if name not in _ALL:
        hint = did_you_mean(name, _ALL)
        raise Error(f"method={given!r} is unknown.{hint} Choose one of {', '.join(_ALL)}.")
    known = _ALL[name].options
    values = options(name)
    for setting in chosen:
        option, equals, text = setting.partition("=")
        if option not in known or not equals:
            listed = ", ".join(f"{key}={value}" for key, value in options(name).items()) or "none"
            hint = did_you_mean(option, known)
            raise Error(
                f"method={given!r}: {setting!r} is not a valid option of {name!r}; its options: {listed}.{hint}"
            )
        values[option] = known[option].parsed(text, given, option)
    if name in RULE_SETS:
        _rules(name, values)  # an error for a negative gamma
    return name, values


def find(
    given: MethodLike,
    *,
    trusted: Collection[str] = (),
    checkpoint: str = "auto",
    tokens: Mapping[str, int] | None = None,
) -> Method:
    """Look up a method and bind its options.

    Parameters
    ----------
    given
        The name of a method, optionally with options, such as "random:seed=3"; or a rule set, such as the result of
        `conserva.rules(...)`.
    trusted, checkpoint
        As in `conserva.relevance`. Only methods that are rule sets use them.
    tokens
        The ids of special tokens, "mask" and "pad", by which a baseline may be named.
    """
    from ..engine.context import Propagation, as_rule_set
    from .gradient import by_rule_set

    if isinstance(given, (RuleSet, Propagation)):
        own = as_rule_set(given)
        parts = {key: value for key, value in own.to_dict().items() if key != "name"}
        return Method(own.name, own.summary, by_rule_set(own, trusted, checkpoint), parts, own)
    name, values = parsed(str(given))
    changed = "".join(f":{key}={value}" for key, value in values.items() if value != options(name)[key])
    entry = _ALL[name]
    if entry.function is None:
        rules = _rules(name, values)
        apply = by_rule_set(rules, trusted, checkpoint, values["at"])
        return Method(name + changed, entry.summary, apply, values, rules)
    module, _, function = entry.function.partition(":")
    bound = {key: (tokens or {}).get(value, value) if key == "baseline" else value for key, value in values.items()}
    apply = partial(getattr(import_module(f".{module}", __package__), function), **bound)
    return Method(name + changed, entry.summary, apply, values)


def rules_of(method: Method) -> RuleSet | None:
    """Return the rule set of a method; None if it is not a rule set, or does not read relevance at the inputs."""
    return method.rules if method.options.get("at", "inputs") == "inputs" else None


def _rules(name: str, values: Mapping[str, Any]) -> RuleSet:
    """Return a rule set with options: LRP-gamma for linear layers and residual sums, where its strength is not 0."""
    changes: dict[str, str | float] = {"gamma": values["gamma"]} if values["gamma"] else {}
    if values["residual"] != options(name)["residual"]:
        changes |= {"residual_gamma": values["residual"]} if values["residual"] else {"residual": "gradient"}
    if values["bilinear"] != "refuse":
        changes["bilinear"] = values["bilinear"]
    return rule_set(name, **changes)
