"""The layers of a network, found while it runs: modules of one class in a list, each with numbers for every place."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.hooks import hooked
from ..engine.inputs import Inputs
from ..engine.module_tree import modules_of
from ..engine.untouched import untouched


@dataclass(frozen=True, eq=False)
class Stack:
    """Layers that follow one another: an encoder's, or a decoder's."""

    name: str
    """The name of their list."""
    calls: tuple[str, ...]
    """The layers in the order in which they ran; one that runs again is "name#2"."""
    places: int
    """How many places each of them has."""
    entering: Tensor | None
    """What the first of them was given, of places x width."""

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the layers, each once."""
        return tuple(dict.fromkeys(call.partition("#")[0] for call in self.calls))


def stacks_of(model: nn.Module, inputs: Mapping[str, Tensor]) -> list[Stack]:
    """Return the stacks of layers in the order in which one sample goes through them.

    A stack is a list of modules that have modules themselves, all of one class, that lies in no layer of another
    stack; the output of each is of 1 x places x width, with as many places for all.
    """
    names = {id(module): name for name, module in modules_of(model).items()}
    owners = {
        names[id(layer)]: (name, layer)
        for name, layers in ((names[id(one)], one) for one in model.modules() if _are_layers(one))
        for layer in layers.children()
    }
    ran: dict[str, list[tuple[str, Any, Any]]] = {}

    def hook(layer: str, owner: str) -> Any:
        def note(module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
            ran.setdefault(owner, []).append((layer, _of_places((*args, *kwargs.values())), _of_places([output])))

        return note

    hooks = [(module, hook(layer, owner)) for layer, (owner, module) in owners.items()]
    with untouched(model), hooked(after=hooks, with_kwargs=True), torch.no_grad():
        Inputs.of(model, inputs).without_cache(model).run(model)
    fitting = {name: calls for name, calls in ran.items() if _all_alike([_places(after) for *_, after in calls])}
    outermost = (name for name in fitting if not any(name.startswith(f"{other}.") for other in fitting))
    return [_stack(name, fitting[name]) for name in outermost]


def short_names(stacks: list[Stack]) -> list[str]:
    """Return what the layers are called: "layer 0", or "encoder layer 0" where there are several stacks."""
    paths = [stack.name.split(".") for stack in stacks]
    parts = list(itertools.zip_longest(*paths, fillvalue=""))
    differ = next((i for i, names in enumerate(parts) if len(set(names)) > 1), None)
    said = ["" if differ is None else f"{path[min(differ, len(path) - 1)]} " for path in paths]
    return [f"{name}layer {i}" for name, stack in zip(said, stacks, strict=True) for i in range(len(stack.calls))]


def _stack(name: str, calls: list[tuple[str, Any, Any]]) -> Stack:
    times: dict[str, int] = {}
    said = []
    for layer, _, _ in calls:
        times[layer] = times.get(layer, 0) + 1
        said.append(layer if times[layer] == 1 else f"{layer}#{times[layer]}")
    before = calls[0][1]
    return Stack(name, tuple(said), _places(calls[0][2]), None if before is None else before[0])


def _all_alike(places: list[int]) -> bool:
    return len(set(places)) == 1 and places[0] > 0


def _are_layers(module: nn.Module) -> bool:
    children = list(module.children())
    alike = len({type(one) for one in children}) == 1 and any(True for _ in children[0].children())
    return isinstance(module, (nn.ModuleList, nn.Sequential)) and alike


def _of_places(found: Any) -> Tensor | None:
    """Return the first tensor of 1 x places x width among what a module was given, or gave."""
    parts = (one[0] if isinstance(one, (tuple, list)) and one else one for one in found)
    fitting = (x for x in parts if isinstance(x, Tensor) and x.is_floating_point() and x.dim() == 3 and len(x) == 1)
    return next(fitting, None)


def _places(x: Tensor | None) -> int:
    return 0 if x is None else x.shape[1]
