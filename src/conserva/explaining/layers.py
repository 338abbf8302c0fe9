"""Find a network's stacks of layers during a forward pass: lists of modules that return a hidden state per position."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.hooks import hooked
from ..engine.inputs import Inputs
from ..engine.module_tree import Modules
from ..engine.untouched import untouched


@dataclass(frozen=True, eq=False)
class Stack:
    """Consecutive layers, such as those of an encoder or a decoder."""

    name: str
    """The name of the module list."""
    calls: tuple[str, ...]
    """The layers' names in the order of their calls; the second call of a layer is "name#2"."""
    positions: int
    """The sequence length, the same for all layers."""
    entering: Tensor | None
    """The hidden states that the first layer receives: positions x width."""

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the layers, without duplicates."""
        return tuple(dict.fromkeys(call.partition("#")[0] for call in self.calls))


def stacks_of(model: nn.Module, inputs: Mapping[str, Tensor]) -> list[Stack]:
    """Return the stacks of layers in the order of the forward pass of one sample.

    A stack is a ModuleList or Sequential whose children are of one class, have submodules, and return hidden states of
    1 x positions x width with the same number of positions. Stacks inside a layer of another stack are left out.
    """
    names = {id(module): name for name, module in Modules.of(model).items()}
    owners = {
        names[id(layer)]: (name, layer)
        for name, layers in ((names[id(module)], module) for module in model.modules() if _are_layers(module))
        for layer in layers.children()
    }
    calls_of: dict[str, list[tuple[str, Any, Any]]] = {}

    def hook(layer: str, owner: str) -> Any:
        def record(module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
            before, after = _hidden_states((*args, *kwargs.values())), _hidden_states([output])
            calls_of.setdefault(owner, []).append((layer, before, after))

        return record

    hooks = [(module, hook(layer, owner)) for layer, (owner, module) in owners.items()]
    with untouched(model), hooked(after=hooks, with_kwargs=True), torch.no_grad():
        Inputs.of(model, inputs).without_cache(model).run(model)
    stacks = {name: calls for name, calls in calls_of.items() if _all_alike([_length(after) for *_, after in calls])}
    outermost = (name for name in stacks if not any(name.startswith(f"{other}.") for other in stacks))
    return [_stack(name, stacks[name]) for name in outermost]


def short_names(stacks: list[Stack]) -> list[str]:
    """Return the display names of the layers: "layer 0", or "encoder layer 0" where there are several stacks."""
    paths = [stack.name.split(".") for stack in stacks]
    parts = list(itertools.zip_longest(*paths, fillvalue=""))
    differ = next((i for i, names in enumerate(parts) if len(set(names)) > 1), None)
    prefixes = ["" if differ is None else f"{path[min(differ, len(path) - 1)]} " for path in paths]
    pairs = zip(prefixes, stacks, strict=True)
    return [f"{prefix}layer {i}" for prefix, stack in pairs for i in range(len(stack.calls))]


def _stack(name: str, calls: list[tuple[str, Any, Any]]) -> Stack:
    times: dict[str, int] = {}
    names = []
    for layer, _, _ in calls:
        times[layer] = times.get(layer, 0) + 1
        names.append(layer if times[layer] == 1 else f"{layer}#{times[layer]}")
    before = calls[0][1]
    return Stack(name, tuple(names), _length(calls[0][2]), None if before is None else before[0])


def _all_alike(lengths: list[int]) -> bool:
    return len(set(lengths)) == 1 and lengths[0] > 0


def _are_layers(module: nn.Module) -> bool:
    children = list(module.children())
    alike = len({type(child) for child in children}) == 1 and any(True for _ in children[0].children())
    return isinstance(module, (nn.ModuleList, nn.Sequential)) and alike


def _hidden_states(values: Any) -> Tensor | None:
    """Return the first floating-point tensor of 1 x positions x width among a module's arguments or outputs."""
    firsts = (value[0] if isinstance(value, (tuple, list)) and value else value for value in values)
    states = (x for x in firsts if isinstance(x, Tensor) and x.is_floating_point() and x.dim() == 3 and len(x) == 1)
    return next(states, None)


def _length(x: Tensor | None) -> int:
    return 0 if x is None else x.shape[1]
