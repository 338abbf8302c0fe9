"""The registry of methods, and the parser of their options."""

from __future__ import annotations

import difflib
import inspect
import math
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias

from torch import Tensor, nn

from ..engine.context import Propagation, as_rule_set
from ..engine.memory import AUTO
from ..engine.rules import RULE_SETS, RuleSet
from ..errors import Error
from .attention import a_flow, a_last, rollout
from .attribution import Attribution
from .chefer import chefer, partial_lrp
from .gae import attn_gradcam, gae
from .gradient import by_rule_set, rules_with
from .integrated import ig
from .random_order import random

MethodLike: TypeAlias = "str | RuleSet | Propagation"
"""A method as given by the user: its name, optionally with options, or a rule set."""


class Apply(Protocol):
    """The signature of a method's function. Its keyword-only arguments are the method's options."""

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


_ALL: tuple[tuple[str, str, Any], ...] = (
    ("random", "a random order of the features, as a baseline", random),
    *((name, rules.summary, by_rule_set(name)) for name, rules in RULE_SETS.items()),
    ("ig", "Integrated Gradients (Sundararajan et al. 2017), with its completeness gap", ig),
    ("a-last", "attention of the last layer, averaged over heads", a_last),
    ("rollout", "attention rollout through all layers (Abnar & Zuidema 2020)", rollout),
    ("a-flow", "attention as a maximum flow (Abnar & Zuidema 2020)", a_flow),
    ("gae", "attention weighted by its gradient, layer upon layer (Chefer et al., ICCV 2021)", gae),
    ("chefer", "LRP of attention weighted by its gradient, rolled out (Chefer et al., CVPR 2021)", chefer),
    ("partial-lrp", "LRP down to the last layer's attention (Voita et al. 2019, as in Chefer et al.)", partial_lrp),
    ("attn-gradcam", "Grad-CAM on the last layer's attention (as in Chefer et al., CVPR 2021)", attn_gradcam),
)


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
    return {name: summary for name, summary, _ in _ALL}


def options(name: str) -> dict[str, Any]:
    """Return the options of a method with their default values."""
    function = next(function for known, _, function in _ALL if known == name)
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def find(given: MethodLike, *, trusted: Collection[str] = (), checkpoint: str = AUTO) -> Method:
    """Look up a method and bind its options.

    Parameters
    ----------
    given
        The name of a method, optionally with options, such as "random:seed=3"; or a rule set, such as the result of
        `conserva.rules(...)`.
    trusted, checkpoint
        As in `conserva.relevance`. Only methods that are rule sets use them.
    """
    if isinstance(given, (RuleSet, Propagation)):
        own = as_rule_set(given)
        parts = {key: value for key, value in own.to_dict().items() if key != "name"}
        return Method(own.name, own.summary, by_rule_set(own, trusted, checkpoint), parts, own)
    name, *chosen = str(given).split(":")
    entry = next((entry for entry in _ALL if entry[0] == name), None)
    if entry is None:
        near = difflib.get_close_matches(name, list(methods()), 1, 0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise Error(f"method={given!r} is unknown.{hint} Choose one of {', '.join(methods())}.")
    _, summary, function = entry
    defaults = options(name)
    hints = typing.get_type_hints(function)
    values = dict(defaults)
    for setting in chosen:
        option, equals, text = setting.partition("=")
        if option not in defaults or not equals:
            known = ", ".join(f"{key}={value}" for key, value in defaults.items()) or "none"
            raise Error(f"method={given!r}: {setting!r} is not a valid option of {name!r}; its options: {known}.")
        values[option] = _value(given, option, text, hints[option])
    changed = "".join(f":{key}={value}" for key, value in values.items() if value != defaults[key])
    rules: RuleSet | None = None
    if name in RULE_SETS:
        function = by_rule_set(name, trusted, checkpoint)
        rules = rules_with(name, values["gamma"], values["bilinear"])
    return Method(name + changed, summary, partial(function, **values), values, rules)


def rules_of(method: Method) -> RuleSet | None:
    """Return the rule set of a method; None if it is not a rule set, or does not read relevance at the inputs."""
    return method.rules if method.options.get("at", "inputs") == "inputs" else None


def _value(given: str, option: str, text: str, kind: Any) -> Any:
    """Parse an option's value according to its type annotation, `kind`."""
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        if text in choices:
            return text
        raise Error(f"method={given!r}: {option}={text} is not one of {', '.join(choices)}.")
    kinds = typing.get_args(kind) or (kind,)  # get_type_hints of Python 3.10 makes Optional where the default is None
    if text == "None" and type(None) in kinds:
        return None
    number, noun = (float, "finite number") if float in kinds else (int, "whole number")
    try:
        value = number(text)
        if not math.isfinite(value):
            raise ValueError
        return value
    except (ValueError, OverflowError):
        raise Error(f"method={given!r}: {option}={text} is not a {noun}.") from None
