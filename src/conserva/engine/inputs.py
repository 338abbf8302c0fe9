"""The arguments of a call of a model, and which of them are explained."""

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
    """The arguments of one call of a model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...]
    """The names of the positional arguments."""
    batch_dim: int
    main: str = "input_ids"
    """The name of the model's main input (`main_input_name` of Hugging Face models): ids under it are explained."""

    @classmethod
    def of(cls, model: nn.Module, given: Any, batch_dim: int = 0) -> Inputs:
        """Return the call given as a tensor, a tuple of positional arguments, or a mapping of keyword arguments.

        Parameters
        ----------
        model
            The model to call.
        given
            A tensor, a tuple, or a mapping such as a tokenizer returns.
        batch_dim
            The batch dimension of the inputs.
        """
        if isinstance(given, Mapping):
            args, kwargs = (), dict(given)
        else:
            args, kwargs = (given if isinstance(given, tuple) else (given,)), {}
        # The graph that a user's tensors were computed by is not part of the explanation.
        args, kwargs = tuple(map(_detached, args)), {name: _detached(x) for name, x in kwargs.items()}
        if not any(isinstance(x, Tensor) for x in (*args, *kwargs.values())):
            raise Error(f"inputs={given!r} has no tensor: pass the model's arguments as a dict, a tensor or a tuple.")
        names = [*(parameters_of(model) if args else ()), *map(str, range(len(args)))]
        main = getattr(model, "main_input_name", None)
        return cls(args, kwargs, tuple(names[: len(args)]), batch_dim, main if isinstance(main, str) else "input_ids")

    @property
    def first(self) -> str:
        """The name of the first positional argument."""
        return self.names[0]

    @property
    def named(self) -> dict[str, Any]:
        """All arguments by name."""
        return {**dict(zip(self.names, self.args, strict=True)), **self.kwargs}

    def features(self) -> dict[str, Tensor]:
        """Return the explained inputs by name.

        These are the first positional argument, floating-point tensors unless they are masks or labels, and token ids
        whose name ends in `input_ids` or is that of the model's main input. If there are none, the candidates are
        returned.
        """
        features = self._required() or self.candidates()
        if not features:
            raise Error(
                f"inputs has {', '.join(map(repr, self.kwargs))}, none of which can be explained: name token ids "
                "'input_ids', or pass them as the first positional argument."
            )
        return features

    def candidates(self) -> dict[str, Tensor]:
        """Return the integer tensors that are explained if the model looks them up in an embedding table."""
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
        """Return the number of samples; all features must have the same, unless there is one sample."""
        features = self.features()
        for name, x in features.items():
            if x.dim() <= self.batch_dim or x.numel() == 0:
                raise Error(
                    f"{name} has shape {tuple(x.shape)}: it must not be empty, and dimension {self.batch_dim} must be "
                    "the batch dimension."
                )
        sizes = {name: x.shape[self.batch_dim] for name, x in features.items()}
        ids = [sizes[name] for name, x in features.items() if not x.is_floating_point()]
        samples = (ids or list(sizes.values()))[0]
        if samples > 1 and len(set(sizes.values())) > 1:  # a single sample may have its patches in this dimension
            raise Error(
                f"The inputs have different batch sizes along dimension {self.batch_dim}: {sizes}. If patches of all "
                "samples are packed along it, explain one sample at a time."
            )
        return samples

    def replaced(self, features: Mapping[str, Tensor]) -> Inputs:
        """Return the same call with some arguments replaced."""
        args = tuple(features.get(name, arg) for name, arg in zip(self.names, self.args, strict=True))
        return replace(self, args=args, kwargs={k: features.get(k, v) for k, v in self.kwargs.items()})

    def with_(self, **kwargs: Any) -> Inputs:
        """Return the same call with further keyword arguments."""
        return replace(self, kwargs={**self.kwargs, **kwargs})

    def sample(self, i: int) -> Inputs:
        """Return the call for one sample, with a batch size of 1."""
        samples = self.samples()

        def narrowed(x: Any) -> Any:
            if isinstance(x, Tensor) and x.dim() > self.batch_dim and x.shape[self.batch_dim] == samples:
                return x.narrow(self.batch_dim, i, 1)
            if isinstance(x, Tensor) and x.dim() and x.shape[0] == samples:  # a padding mask of a time-first model
                return x[i : i + 1]
            return x

        kwargs = {k: narrowed(v) for k, v in self.kwargs.items()}
        return replace(self, args=tuple(map(narrowed, self.args)), kwargs=kwargs)

    def repeated(self, times: int) -> Inputs:
        """Return the call with the whole batch repeated `times` times."""
        samples = self.samples()

        def again(x: Any) -> Any:
            if isinstance(x, Tensor) and x.dim() and x.shape[0] == samples and times > 1:
                return torch.cat([x] * times)
            return x

        return replace(self, args=tuple(map(again, self.args)), kwargs={k: again(v) for k, v in self.kwargs.items()})

    def without_cache(self, model: nn.Module) -> Inputs:
        """Return the same call with `use_cache=False`: only generation needs a key-value cache, which takes memory."""
        takes = "use_cache" in parameters_of(model) and not {"use_cache", "past_key_values"} & set(self.kwargs)
        return self.with_(use_cache=False) if takes else self

    def run(self, model: nn.Module) -> Any:
        """Call the model."""
        return model(*self.args, **self.kwargs)


def parameters_of(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a model's forward method, by name."""
    method = model.forward
    function = getattr(method, "__func__", None)
    if function is None:  # an attribute of the instance, as some libraries set it
        own = dict(inspect.signature(method).parameters)
        own.pop("self", None)  # of a wrapper that has the signature of the class's function, as nnsight's
        return own
    parameters = _parameters.get(function)
    if parameters is None:
        parameters = _parameters[function] = dict(list(inspect.signature(function).parameters.items())[1:])
    return parameters


_parameters: weakref.WeakKeyDictionary[Callable[..., Any], Mapping[str, inspect.Parameter]]
_parameters = weakref.WeakKeyDictionary()  # a function may refer to its model, which the cache must not keep alive


def _detached(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) and x.requires_grad else x


def _is_feature(name: str, x: Tensor, main: str) -> bool:
    if x.is_floating_point():
        return not name.endswith(("mask", "labels"))
    return x.dtype in _IDS and (name.endswith("input_ids") or name == main)


def _is_candidate(name: str, x: object) -> bool:
    return isinstance(x, Tensor) and x.dtype in _IDS and not name.endswith(_NOT_TOKENS)


_IDS = (torch.int64, torch.int32)
_NOT_TOKENS = (
    "mask", "position_ids", "positions", "position", "type_ids", "segment_ids", "segments", "lengths", "length", "lens",
)  # fmt: skip
"""Endings of the names of integer inputs that are not token ids, even if they are looked up in a table."""
