"""A second opinion on relevance scores: the model run again with its frozen factors held, and the inputs changed.

The scores say by how much the output changes if an input is scaled: x_t (1 + h) changes it by h R_t, as long as every
factor that the rules freeze keeps its value. Here that is measured, in forward passes alone, with no gradient and no
book-keeping involved. Token ids are changed in the table of words: every row that stands for a token of the input is
scaled, in whatever call it is looked up. So a look-up that was taken for a constant, or a constant that was taken for
the input, shows.
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
"""By which share the inputs are scaled, up and down, and by half of it: the error is of the fourth order."""

DIRECTIONS = 3


@dataclass(frozen=True)
class Opinion:
    """What the scores predict, and what the model did."""

    relevance: Relevance
    predicted: Tensor
    """Directions x samples: how fast the output changes along each direction, by the scores."""
    found: Tensor
    """The same, measured."""
    rebuilt: float
    """How far the output made of the held factors is from the model's own, relative to its size."""

    @property
    def error(self) -> float:
        """The largest difference between what was predicted and what was found, relative to the size of the scores."""
        sizes = torch.stack([in_float32(one).double().square().sum() for one in self.relevance.values.values()])
        scale = torch.maximum(sizes.sum().sqrt().cpu(), self.found.abs().max())
        return float((self.predicted - self.found).abs().max() / scale) if scale > 0 else 0.0


class _Scaled(TorchFunctionMode):
    """Scales the rows of tables that stand for tokens of the input, in every look-up."""

    def __init__(self, tables: Mapping[int, Tensor], step: float) -> None:
        super().__init__()
        self._tables, self._step = tables, step

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        found = _look_up(func, args, kwargs or {})
        if found is None or found[1].data_ptr() not in self._tables:
            return out
        ids, table = found
        signs = self._tables[table.data_ptr()].to(out.device)[ids.as_subclass(Tensor)]
        return out * (1 + self._step * signs.to(out.dtype)).unsqueeze(-1)


class _LookUps(TorchFunctionMode):
    """Notes the tables that ids equal to an input's are looked up in."""

    def __init__(self, ids: list[Tensor]) -> None:
        super().__init__()
        self._ids = ids
        self.tables: dict[int, int] = {}
        """Where a table lies -> how many rows it has."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = _look_up(func, args, kwargs or {})
        if found is not None and any(_same(found[0], one) for one in self._ids):
            self.tables[found[1].data_ptr()] = found[1].shape[0]
        return func(*args, **(kwargs or {}))


def _look_up(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Return the ids and the table of a look-up, and nothing for other calls."""
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
    """Compare a model's relevance scores with what happens when the inputs are scaled and all else is held.

    Parameters
    ----------
    model, inputs, target, rules
        As in `conserva.relevance`. In float64 the two agree to many digits; in float32 to about four.
    directions
        In how many random directions the inputs are changed, each with seven forward passes less three.
    step
        By which share the inputs are changed.
    seed
        Of the random directions.
    how
        More arguments of `conserva.relevance`: `batch_dim`, `trusted`.

    Returns
    -------
    Opinion
        What the scores predict, what was measured, and the `error` between them.

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
    modules = module_tree.modules_of(model)
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
    predicted, found = [], []
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

        found.append((4 * slope(step / 2) - slope(step)) / 3)
        predicted.append(_predicted(result, ids, signs, waves, batch_dim))
    size = torch.maximum(result.output.abs().max(), torch.tensor(1e-30).to(result.output)).double().cpu()
    error = float((rebuilt - result.output.double().cpu()).abs().max() / size)
    return Opinion(result, torch.stack(predicted), torch.stack(found), error)


def _signs(
    model: nn.Module, ids: Mapping[str, Tensor], tables: Mapping[int, int], generator: torch.Generator
) -> Tensor:
    """Return for each row of the tables 1 or -1 if it stands for a token of the input, and 0 otherwise.

    Tokens that models put in by themselves, such as the one that a decoder starts with, are left as they are.
    """
    size = max([*tables.values(), 0])
    signs = torch.zeros(size, dtype=torch.float64)
    if not ids:
        return signs
    if not size:
        raise Error("The input's ids are looked up in no table that a second opinion could change.")
    there = torch.unique(torch.cat([x.reshape(-1).cpu().long() for x in ids.values()]))
    there = there[(there >= 0) & (there < size)]
    signs[there] = (torch.randint(0, 2, there.shape, generator=generator) * 2 - 1).double()
    signs[[one for one in _special(model) if 0 <= one < size]] = 0
    return signs


def _special(model: nn.Module) -> list[int]:
    """Return the ids that a Hugging Face configuration names, in all its parts."""
    found: list[int] = []
    waiting = [getattr(model, "config", None), getattr(model, "generation_config", None)]
    while waiting:
        for name, value in getattr(waiting.pop(), "__dict__", {}).items():
            if hasattr(value, "to_dict"):
                waiting.append(value)
            elif name.endswith(("token_id", "token_ids", "token_index")):
                found += [one for one in (value if isinstance(value, list) else [value]) if type(one) is int]
    return found


def _predicted(
    result: Relevance, ids: Mapping[str, Tensor], signs: Tensor, waves: Mapping[str, Tensor], batch_dim: int
) -> Tensor:
    """Return by the scores how fast the output of each sample changes."""
    total = torch.zeros(len(result.output), dtype=torch.float64)
    for name in result.inputs:
        if name in ids:
            parts = result.scores(name).double().cpu() * signs[ids[name].cpu().long()]
        else:
            parts = result.values[name].double().cpu() * waves[name].double().cpu()
        total += parts.sum() if len(total) == 1 else parts.movedim(batch_dim, 0).flatten(1).sum(1)
    return total
