"""Forward functions of captum as modules that the engine can explain."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from captum._utils.common import _select_targets
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..engine.context import current
from ..engine.hooks import hooked
from ..engine.inputs import Inputs
from ..engine.module_tree import Modules, refuse_opaque_modules
from ..errors import Error

FORWARD = "forward_func"
"""captum's name for the function, and the name of its module in messages."""


@dataclass(frozen=True)
class Call(Inputs):
    """The arguments of one call of a `ForwardFunction`: the explained inputs, all other arguments, and the target."""

    explained: int = 1

    @classmethod
    def of_captum(cls, inputs: tuple[Tensor, ...], others: tuple[Any, ...], target: Any) -> Call:
        """Return the call, with a target as captum takes it."""
        names = ["inputs"] if len(inputs) == 1 else [f"inputs[{i}]" for i in range(len(inputs))]
        names += [f"additional_forward_args[{i}]" for i in range(len(others))]
        target = _rows(target, len(inputs[0]) if inputs[0].dim() else 0)
        args = tuple(x.detach() if isinstance(x, Tensor) else x for x in (*inputs, *others, target))
        return cls(args, {}, (*names, "target"), 0, explained=len(inputs))

    def features(self) -> dict[str, Tensor]:
        """Return the explained inputs by name; all other arguments are constants."""
        return dict(zip(self.names[: self.explained], self.args, strict=False))

    def candidates(self) -> dict[str, Tensor]:
        """Return nothing: ids are explained at the output of a layer."""
        return {}


class ForwardFunction(nn.Module):
    """A function that calls models, as a module whose submodules are these models.

    Parameters
    ----------
    function
        A module, or a function that calls modules.
    call
        The arguments: a function is run with them once, to find the modules that it calls.
    layers
        The layers whose relevance is requested. The function is run once for them, too.
    """

    def __init__(self, function: Callable[..., Any], call: Call, layers: Sequence[nn.Module] = ()) -> None:
        super().__init__()
        self.run = function.__call__ if isinstance(function, nn.Module) else function
        found = {FORWARD: function} if isinstance(function, nn.Module) else {}
        tensors: dict[nn.Module, list[int]] = {}
        if layers or not found:
            called = modules_called(function, call, {layer: tensors.setdefault(layer, []) for layer in layers})
            found = found or called
        self._modules.update(found)
        self._models = list(self.children())
        known = set(self.modules())
        self._modules.update({f"layer{i}": layer for i, layer in enumerate(layers) if layer not in known})
        self.layers = {layer: name for name, layer in self.named_modules() if layer in layers}
        """The layers whose relevance is requested, with their names."""
        self._exits = {layer: self._add_exits(tensors[layer], name) for layer, name in self.layers.items()}
        self.number = torch.empty(0)
        """The explained number of each sample in the last call."""

    def _add_exits(self, tensors: list[int], name: str) -> dict[int, str]:
        """Add a module for each of several tensors that a layer returns, as a site; return their names by position."""
        names = {i: f"{name}_{i}".replace(".", "_") for i in tensors} if len(tensors) > 1 else {}
        self._modules.update({each: nn.Identity() for each in names.values()})
        return names

    def sites(self, layer: nn.Module) -> list[str]:
        """Return the name of a layer, or those of the tensors that it returns, if they are several."""
        return list(self._exits[layer].values()) or [self.layers[layer]]

    def _leave(self, layer: nn.Module, output: Any) -> Any:
        """Return a layer's output after its tensors have passed their own modules; None if it is one tensor."""
        if not self._exits[layer]:
            return None
        names = self._exits[layer]
        values = [self.get_submodule(names[i])(x) if i in names else x for i, x in enumerate(output)]
        return type(output)(*values) if hasattr(output, "_fields") else type(output)(values)

    def _get_name(self) -> str:
        """Return the classes of the models, for messages."""
        return ", ".join(type(model).__name__ for model in self._models) or FORWARD

    def selected(self, output: Any) -> Tensor:
        """Return the explained number of each sample: the target, for the engine."""
        return self.number

    def forward(self, *args: Any) -> Any:
        """Call the function, keep the number that the last argument selects, and return what the models returned.

        What the function computes from the outputs of its models, such as a log-probability, is then a part of the
        target, as in `conserva.relevance(model, inputs, function)`: unless it contains a call that followed a rule.
        Then the function is a model itself.
        """
        *given, target = args
        outputs: list[Any] = []
        calls: list[nn.Module] = []

        def leave(layer: nn.Module, given: Any, output: Any) -> Any:
            calls.append(layer)
            return self._leave(layer, output)

        after: list[tuple[nn.Module, Callable[..., Any]]]
        after = [(layer, leave) for layer in self.layers]
        after += [(module, lambda module, given, output: outputs.append(output)) for module in self._models]
        with hooked(after):
            value = self.run(*given)
        for layer, name in self.layers.items():
            if (many := calls.count(layer)) != 1:
                raise Error(f"layer={name!r} is called {many} times by forward_func: give a layer that is called once.")
        self.number = selected(value, target, len(given[0]))
        context = current()
        is_model = not outputs or (context is not None and context.coverage.has_own(self))
        return value if is_model else outputs


def modules_called(
    function: Callable[..., Any], call: Call, tensors: dict[nn.Module, list[int]]
) -> dict[str, nn.Module]:
    """Run a function, and return the modules that it calls, by their class, without those inside another of them.

    `tensors` has the layers to watch, and gets the positions of floating-point tensors in the tuples that they return.
    """
    call.samples()  # an error for inputs that make no sense
    called: dict[nn.Module, None] = {}
    running: list[nn.Module] = []
    thread = threading.get_ident()

    def enter(module: nn.Module, given: Any) -> None:
        if threading.get_ident() == thread:
            if not running:
                refuse_opaque_modules(Modules.of(module))
                called[module] = None
            running.append(module)

    def leave(module: nn.Module, given: Any, output: Any) -> None:
        if module in tensors and isinstance(output, (tuple, list)):
            tensors[module][:] = [i for i, x in enumerate(output) if isinstance(x, Tensor) and x.is_floating_point()]
        if threading.get_ident() == thread and running:
            running.pop()

    with contextlib.ExitStack() as hooks, torch.inference_mode(False), torch.no_grad():
        for handle in (
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
        ):
            hooks.callback(handle.remove)
        function(*call.args[:-1])  # the last argument is the target
    inside = {part for module in called for part in module.modules() if part is not module}
    found: dict[str, nn.Module] = {}
    for module in called:
        if module not in inside:
            kind = type(module).__name__
            found[f"{kind}{len(found)}" if kind in found else kind] = module
    return found


def _rows(target: Any, samples: int) -> Any:
    """Return a list of targets as a tensor with a row for each sample, which can be split by sample."""
    if not isinstance(target, list):
        return target
    if len(target) != samples:
        raise Error(f"target has {len(target)} entries for {samples} sample(s): give one for each, or one for all.")
    try:
        return torch.tensor(target)
    except (TypeError, ValueError) as error:
        raise Error(f"target={target!r} is not a list of class indices, or of index tuples of one length.") from error


def selected(value: Any, target: Any, samples: int) -> Tensor:
    """Return the entry of each sample's output that captum selects for a target."""
    if not isinstance(value, Tensor):
        raise Error(
            f"forward_func returned {type(value).__name__}: captum needs a tensor, for example "
            "forward_func=lambda *inputs: model(*inputs).logits."
        )
    if not value.is_floating_point():
        raise Error(f"forward_func returned {value.dtype}: there is no gradient. Return scores, such as logits.")
    shape = tuple(value.shape)
    if isinstance(target, Tensor) and target.dim() == 2:
        target = [tuple(row) for row in target.tolist()]
    try:
        chosen: Tensor = _select_targets(value, target)
    except (AssertionError, IndexError, RuntimeError, TypeError) as error:
        raise Error(f"target={target!r} does not fit an output of shape {shape}: {error}") from error
    if not chosen.dim() or chosen.numel() != len(chosen):
        raise Error(
            f"target={target!r} selects {tuple(chosen.shape)} from an output of shape {shape}: give the indices of one "
            "number for each sample."
        )
    if len(chosen) != samples:
        raise Error(f"forward_func returned shape {shape} for {samples} sample(s): its first dimension is the batch.")
    return chosen.reshape(-1)
