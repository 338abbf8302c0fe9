"""A second opinion on relevance scores: finite differences of the model with its frozen factors held constant.

Relevance scores predict how the output changes when an input is scaled: replacing x_t by x_t (1 + h) changes it by
h R_t, if every factor that the rules freeze keeps its value. This module measures that change with forward passes only,
without gradients and without the ledger. For token ids, the embeddings of the input's tokens are scaled in every
look-up, so that errors in the distinction of inputs and constants are detected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..engine import module_tree
from ..engine.context import Propagation, as_rule_set
from ..engine.forward import forward
from ..engine.frozen_factors import FrozenFactors
from ..engine.inputs import Inputs
from ..engine.operations.tensors import in_float32
from ..engine.passes import Relevance
from ..engine.relevance import relevance
from ..engine.rules import DEFAULT, RuleSet
from ..engine.sources import Sources, word_tables
from ..engine.targets import Target, settled
from ..engine.untouched import untouched
from ..errors import Error

STEP = 0.01
"""The relative step of the central differences, which are taken with this step and with half of it (fourth order)."""

DIRECTIONS = 3


@dataclass(frozen=True)
class Opinion:
    """The change of the output that the scores predict, and the measured one."""

    relevance: Relevance
    predicted: Tensor
    """Directions x samples: the directional derivative of the output according to the scores."""
    found: Tensor
    """Directions x samples: the measured directional derivative."""
    rebuilt: float
    """The relative difference between the output computed with the held factors and the model's output."""

    @property
    def error(self) -> float:
        """The largest difference between predicted and measured derivatives, relative to the norm of the scores."""
        sizes = torch.stack([in_float32(x).double().square().sum() for x in self.relevance.values.values()])
        scale = torch.maximum(sizes.sum().sqrt().cpu(), self.found.abs().max())
        return float((self.predicted - self.found).abs().max() / scale) if scale > 0 else 0.0


class _Scaled(TorchFunctionMode):
    """Scales the embeddings of the input's tokens in every look-up."""

    def __init__(self, tables: Mapping[int, Tensor], step: float) -> None:
        super().__init__()
        self._tables, self._step = tables, step

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        look_up = _look_up(func, args, kwargs or {})
        if look_up is None or look_up[1].data_ptr() not in self._tables:
            return out
        ids, table = look_up
        signs = self._tables[table.data_ptr()].to(out.device)[ids.as_subclass(Tensor)]
        return out * (1 + self._step * signs.to(out.dtype)).unsqueeze(-1)


class _LookUps(TorchFunctionMode):
    """Records the tables in which the ids of an input are looked up."""

    def __init__(self, ids: list[Tensor]) -> None:
        super().__init__()
        self._ids = ids
        self.tables: dict[int, int] = {}
        """Data pointer of a table -> its number of rows."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        look_up = _look_up(func, args, kwargs or {})
        if look_up is not None and any(_same(look_up[0], ids) for ids in self._ids):
            self.tables[look_up[1].data_ptr()] = look_up[1].shape[0]
        return func(*args, **(kwargs or {}))


def _look_up(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Return the ids and the table of an embedding look-up; None for other calls."""
    name = getattr(func, "__name__", "").partition(".")[0]
    given: tuple[Any, ...] = ()
    if name == "embedding":
        given = (*args, *(kwargs[key] for key in ("input", "weight") if key in kwargs))[:2]
    elif name == "__getitem__":
        given = (args[1], args[0])
    elif name == "index_select":
        named = (*args, *(kwargs[key] for key in ("input", "dim", "index") if key in kwargs))
        given = (named[2], named[0]) if named[1] == 0 else ()
    if len(given) == 2 and all(isinstance(x, Tensor) for x in given):
        ids, table = given
        if table.dim() == 2 and table.is_floating_point() and ids.dtype in (torch.int64, torch.int32):
            return ids, table
    return None


def _same(a: Tensor, b: Tensor) -> bool:
    plain = a.as_subclass(Tensor)
    return plain.numel() == b.numel() and torch.equal(plain.reshape(-1), b.reshape(-1).to(plain))


def verify(
    model: nn.Module,
    inputs: Any,
    target: Target | list[Target] | Tensor = None,
    *,
    rules: str | RuleSet | Propagation = DEFAULT,
    directions: int = DIRECTIONS,
    step: float = STEP,
    seed: int = 0,
    **how: Any,
) -> Opinion:
    """Compare a model's relevance scores with the measured effect of scaling the inputs while frozen factors are held.

    Parameters
    ----------
    model, inputs, target, rules
        As in `conserva.relevance`. In float64 both agree to many digits; in float32 to about four.
    directions
        The number of random directions; each takes four forward passes.
    step
        The relative step of the finite differences.
    seed
        The seed of the random directions.
    how
        Further arguments of `conserva.relevance`: `batch_dim`, `trusted`.

    Returns
    -------
    Opinion
        The changes that the scores predict, those that were measured, and the `error` between them.

    Examples
    --------
    >>> task = conserva.load()
    >>> inputs = task.tokenizer("a joy.", return_tensors="pt")
    >>> conserva.verify(task.model, inputs, "positive").error < 1e-2
    True
    """
    with untouched(model):
        return _opinion(model, inputs, target, as_rule_set(rules), directions, step, seed, how)


def _opinion(
    model: nn.Module,
    inputs: Any,
    target: Any,
    rule_set: RuleSet,
    directions: int,
    step: float,
    seed: int,
    how: Mapping[str, Any],
) -> Opinion:
    batch_dim = how.get("batch_dim", 0)
    call = Inputs.of(model, inputs, batch_dim)
    modules = module_tree.Modules.of(model)
    with torch.no_grad():
        fixed = settled(target, call.run(model), call.samples()) if not callable(target) else target
    result = relevance(model, inputs, fixed, rules=rule_set, **how)
    held, generator = FrozenFactors(), torch.Generator().manual_seed(seed)
    given = {**call.candidates(), **call.features()}
    ids = {name: given[name] for name in result.inputs if not given[name].is_floating_point()}
    noting = _LookUps(list(ids.values()))

    def run(mode: TorchFunctionMode, given: Inputs) -> Tensor:
        sources = Sources(modules, given.features(), True, (), given.candidates())
        context = Propagation(rule_set, None, sources)
        context.frozen_factors = held
        with torch.inference_mode(False), torch.enable_grad(), mode:
            _, (number,) = forward(model, given, sources, context, [fixed])
        held.rewind()
        return in_float32(number.detach()).double().cpu()

    run(noting, call)
    rebuilt = run(noting, call)
    tables = {**noting.tables, **{address: size for address, size in word_tables(modules).items() if ids}}
    predicted, measured = [], []
    for _ in range(directions):
        signs = _signs(model, ids, tables, generator)
        waves = {
            name: (torch.randint(0, 2, x.shape, generator=generator) * 2 - 1).to(x)
            for name, x in call.features().items()
            if x.is_floating_point()
        }

        def at(h: float, signs: Tensor = signs, waves: Mapping[str, Tensor] = waves) -> Tensor:
            changed = {name: x * (1 + h * waves[name]) for name, x in call.features().items() if name in waves}
            return run(_Scaled(dict.fromkeys(tables, signs), h), call.replaced(changed))

        def slope(h: float, at: Callable[[float], Tensor] = at) -> Tensor:
            return (at(h) - at(-h)) / (2 * h)

        measured.append((4 * slope(step / 2) - slope(step)) / 3)
        predicted.append(_predicted(result, ids, signs, waves, batch_dim))
    size = torch.maximum(result.output.abs().max(), torch.tensor(1e-30).to(result.output)).double().cpu()
    error = float((rebuilt - result.output.double().cpu()).abs().max() / size)
    return Opinion(result, torch.stack(predicted), torch.stack(measured), error)


def _signs(
    model: nn.Module, ids: Mapping[str, Tensor], tables: Mapping[int, int], generator: torch.Generator
) -> Tensor:
    """Return for each row of the tables 1 or -1 if it is the embedding of a token of the input, otherwise 0.

    Tokens that models insert themselves, such as a decoder's start token, have 0.
    """
    size = max([*tables.values(), 0])
    signs = torch.zeros(size, dtype=torch.float64)
    if not ids:
        return signs
    if not size:
        raise Error("The input's ids are not looked up in an embedding table, so a second opinion is not possible.")
    tokens = torch.unique(torch.cat([x.reshape(-1).cpu().long() for x in ids.values()]))
    tokens = tokens[(tokens >= 0) & (tokens < size)]
    signs[tokens] = (torch.randint(0, 2, tokens.shape, generator=generator) * 2 - 1).double()
    signs[[token for token in _special(model) if 0 <= token < size]] = 0
    return signs


def _special(model: nn.Module) -> list[int]:
    """Return the token ids in a Hugging Face configuration, including nested configurations."""
    special: list[int] = []
    remaining = [getattr(model, "config", None), getattr(model, "generation_config", None)]
    while remaining:
        for name, value in getattr(remaining.pop(), "__dict__", {}).items():
            if hasattr(value, "to_dict"):
                remaining.append(value)
            elif name.endswith(("token_id", "token_ids", "token_index")):
                special += [token for token in (value if isinstance(value, list) else [value]) if type(token) is int]
    return special


def _predicted(
    result: Relevance, ids: Mapping[str, Tensor], signs: Tensor, waves: Mapping[str, Tensor], batch_dim: int
) -> Tensor:
    """Return the directional derivative of each sample's output according to the scores."""
    total = torch.zeros(len(result.output), dtype=torch.float64)
    for name in result.inputs:
        if name in ids:
            parts = result.scores(name).double().cpu() * signs[ids[name].cpu().long()]
        else:
            parts = result.values[name].double().cpu() * waves[name].double().cpu()
        total += parts.sum() if len(total) == 1 else parts.movedim(batch_dim, 0).flatten(1).sum(1)
    return total
