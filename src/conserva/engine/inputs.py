"""What a model is called with, and which of it is to be explained."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Error


@dataclass(frozen=True)
class Inputs:
    """The arguments of one call of a model: positional ones, and others by name."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...]
    """What the model calls the arguments that are given without a name."""
    batch_dim: int
    main: str = "input_ids"
    """What the model calls its main input: ids under this name are explained too."""

    @classmethod
    def of(cls, model: nn.Module, given: Any, batch_dim: int = 0) -> Inputs:
        """Take a tensor, a tuple of arguments, or a mapping of named ones such as a tokenizer returns."""
        if isinstance(given, Mapping):
            args, kwargs = (), dict(given)
        else:
            args, kwargs = (given if isinstance(given, tuple) else (given,)), {}
        # Whatever a user's tensors were made from has no part in the explanation.
        args, kwargs = tuple(map(_detached, args)), {name: _detached(x) for name, x in kwargs.items()}
        if not any(isinstance(x, Tensor) for x in (*args, *kwargs.values())):
            raise Error(f"inputs={given!r} holds no tensor: pass what the model is called with, as a dict or tensors.")
        names = [*(parameters_of(model) if args else ()), *map(str, range(len(args)))]
        main = getattr(model, "main_input_name", None)
        return cls(args, kwargs, tuple(names[: len(args)]), batch_dim, main if isinstance(main, str) else "input_ids")

    @property
    def first(self) -> str:
        """What the model calls the first argument that is given without a name."""
        return self.names[0]

    @property
    def named(self) -> dict[str, Any]:
        """All arguments by name."""
        return {**dict(zip(self.names, self.args, strict=True)), **self.kwargs}

    def features(self) -> dict[str, Tensor]:
        """Return what is to be explained: token ids, and numbers that are not a mask.

        Of arguments without a name these are the first, and all numbers; ids by name are those called `input_ids` or
        the model's main input. If there are none, the candidates are meant.
        """
        found = self._required() or self.candidates()
        if not found:
            raise Error(
                f"inputs has {', '.join(map(repr, self.kwargs))}, none of which is known as something to explain: "
                "name token ids 'input_ids', or pass them as the first positional argument."
            )
        return found

    def candidates(self) -> dict[str, Tensor]:
        """Return the integers that are to be explained if the model looks them up in a table."""
        required = self._required()
        return {name: x for name, x in self.named.items() if name not in required and _is_candidate(name, x)}

    def _required(self) -> dict[str, Tensor]:
        first = self.first if self.args else ""
        return {
            name: x
            for name, x in self.named.items()
            if isinstance(x, Tensor) and (name == first or _is_feature(name, x, self.main))
        }

    def samples(self) -> int:
        """Return how many samples there are; all features must agree, unless there is just one."""
        features = self.features()
        for name, x in features.items():
            if x.dim() <= self.batch_dim or x.numel() == 0:
                raise Error(f"{name} has shape {tuple(x.shape)}: it must hold samples along axis {self.batch_dim}.")
        sizes = {name: x.shape[self.batch_dim] for name, x in features.items()}
        ids = [sizes[name] for name, x in features.items() if not x.is_floating_point()]
        samples = (ids or list(sizes.values()))[0]
        if samples > 1 and len(set(sizes.values())) > 1:  # one sample may come with many patches
            raise Error(
                f"The inputs disagree on the number of samples along axis {self.batch_dim}: {sizes}. If patches of all "
                "samples are packed along it, explain one sample at a time."
            )
        return samples

    def replaced(self, features: Mapping[str, Tensor]) -> Inputs:
        """Return the same call with some features put in anew."""
        args = tuple(features.get(name, arg) for name, arg in zip(self.names, self.args, strict=True))
        return replace(self, args=args, kwargs={k: features.get(k, v) for k, v in self.kwargs.items()})

    def with_(self, **kwargs: Any) -> Inputs:
        """Return the same call with further named arguments."""
        return replace(self, kwargs={**self.kwargs, **kwargs})

    def sample(self, i: int) -> Inputs:
        """Return the call for one sample alone."""
        samples = self.samples()

        def one(x: Any) -> Any:
            if isinstance(x, Tensor) and x.dim() > self.batch_dim and x.shape[self.batch_dim] == samples:
                return x.narrow(self.batch_dim, i, 1)
            if isinstance(x, Tensor) and x.dim() and x.shape[0] == samples:  # a padding mask of a time-first model
                return x[i : i + 1]
            return x

        return replace(self, args=tuple(map(one, self.args)), kwargs={k: one(v) for k, v in self.kwargs.items()})

    def repeated(self, times: int) -> Inputs:
        """Return the call for all samples several times over, one round after the other."""
        samples = self.samples()

        def again(x: Any) -> Any:
            if isinstance(x, Tensor) and x.dim() and x.shape[0] == samples and times > 1:
                return torch.cat([x] * times)
            return x

        return replace(self, args=tuple(map(again, self.args)), kwargs={k: again(v) for k, v in self.kwargs.items()})

    def without_cache(self, model: nn.Module) -> Inputs:
        """Return the same call without a cache of keys and values, which serves generation alone and takes memory."""
        takes = "use_cache" in parameters_of(model) and not {"use_cache", "past_key_values"} & set(self.kwargs)
        return self.with_(use_cache=False) if takes else self

    def run(self, model: nn.Module) -> Any:
        """Call the model."""
        return model(*self.args, **self.kwargs)


def parameters_of(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return what a model's forward takes, by name."""
    method = model.forward
    whole = getattr(method, "__func__", None)
    if whole is None:  # put on the model itself, as some libraries do
        return inspect.signature(method).parameters
    found = _parameters.get(whole)
    if found is None:
        found = _parameters[whole] = dict(list(inspect.signature(whole).parameters.items())[1:])
    return found


_parameters: weakref.WeakKeyDictionary[Callable[..., Any], Mapping[str, inspect.Parameter]]
_parameters = weakref.WeakKeyDictionary()  # a function may know its model, and must not outlive it


def _detached(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) and x.requires_grad else x


def _is_feature(name: str, x: Tensor, main: str) -> bool:
    if x.is_floating_point():
        return not name.endswith(("mask", "labels"))
    return x.dtype in _IDS and (name.endswith("input_ids") or name == main)


def _is_candidate(name: str, x: object) -> bool:
    return isinstance(x, Tensor) and x.dtype in _IDS and not name.endswith(_SOMETHING_ELSE)


_IDS = (torch.int64, torch.int32)
_SOMETHING_ELSE = (
    "mask", "position_ids", "positions", "position", "type_ids", "segment_ids", "segments", "lengths", "length", "lens",
)  # fmt: skip
"""How integers are called that are not looked up as words are, whatever table they are looked up in."""
