"""Quantus: relevance as the `explain_func` of its metrics. Nothing here imports Quantus, which is under the LGPL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..engine.context import Propagation
from ..engine.inputs import parameters_of
from ..engine.operations.tensors import in_float32
from ..engine.relevance import relevance
from ..engine.rules import DEFAULT, RULE_SETS, RuleSet
from ..errors import Error
from ..tasks.reading import Reading

EMBEDDINGS = "inputs_embeds"


def explain_func(
    model: nn.Module,
    inputs: np.ndarray,
    targets: Any,
    *,
    rules: str | RuleSet | Propagation | None = None,
    reduce_axes: int | Sequence[int] | None = None,
    device: str | torch.device | None = None,
    method: str | None = None,
) -> np.ndarray:
    """Return the relevance of a batch, in the form that Quantus expects: give it to a metric as `explain_func`.

    Parameters
    ----------
    model
        A model of one array that returns logits, in evaluation mode. `ArrayModel` makes one of a Hugging Face model.
    inputs
        Samples of floating-point numbers: images as samples x channels x height x width, embedded texts as
        samples x tokens x numbers.
    targets
        The class of each sample.
    rules
        The name of a rule set, or the result of `conserva.rules(...)`. None takes `method`, or else "exact".
    reduce_axes
        The axes over which relevance is summed, which become 1, as in `quantus.explain`. None takes those that belong
        to one feature: the channels of images, the numbers of a token; other arrays are kept. () keeps every number.
    device
        The device of the inputs. None takes the model's.
    method
        What `quantus.evaluate` passes: the name of this function in its `xai_methods`. The name of a rule set, unless
        `rules` are given.

    Returns
    -------
    numpy.ndarray
        With as many dimensions as `inputs`.

    Examples
    --------
    >>> from conserva.integrations.quantus import ArrayModel, explain_func
    >>> task = conserva.load()
    >>> model = ArrayModel(task.model)
    >>> x = model.embedded(task.tokenizer(["a joy."], return_tensors="pt")["input_ids"])
    >>> explain_func(model, x, [1]).shape
    (1, 5, 1)
    >>> import quantus
    >>> metric = quantus.Sparseness(disable_warnings=True)
    >>> scores = metric(model, x, [1], channel_first=True, explain_func=explain_func)
    """
    if not isinstance(model, nn.Module):
        raise Error(f"model={model!r:.80} is not a torch.nn.Module.")
    array = _floats(inputs)
    if array.ndim < 2 or not array.size:
        raise Error(f"inputs has shape {array.shape}: give samples of numbers, in at least two dimensions.")
    axes = _axes(array, reduce_axes)
    dtype, where = _numbers_of(model)
    x = torch.as_tensor(array, dtype=dtype, device=device or where)
    if rules is None:
        rules = _rule_set(method)
    result = relevance(model, x, np.asarray(targets).tolist(), rules=rules)
    scores = next(iter(result.values.values()))
    return (scores.sum(axes, keepdim=True) if axes else scores).cpu().numpy()


def _rule_set(method: str | None) -> str:
    if method is None:
        return DEFAULT
    if method not in RULE_SETS:
        raise Error(
            f"method={method!r} is not a rule set: give one of {', '.join(map(repr, RULE_SETS))}, or any name together "
            "with explain_func_kwargs={'rules': ...}."
        )
    return method


def _floats(inputs: Any) -> np.ndarray:
    """Return the inputs as an array, if they are floating-point numbers."""
    if isinstance(inputs, Mapping):
        raise Error(
            f"inputs has {', '.join(map(repr, inputs))}: give one array of numbers. ArrayModel(model).embedded(ids) "
            "makes one of token ids."
        )
    array = inputs.detach().cpu().numpy() if isinstance(inputs, Tensor) else np.asarray(inputs)
    if not np.issubdtype(array.dtype, np.floating):
        raise Error(
            f"inputs has dtype {array.dtype}: Quantus perturbs floating-point numbers. Give pixels as floats, and "
            "token ids as ArrayModel(model).embedded(ids)."
        )
    return array


def _axes(array: np.ndarray, given: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the axes to sum over, none of which is the batch."""
    if given is None:
        return {3: (2,), 4: (1,)}.get(array.ndim, ())
    axes = (given,) if isinstance(given, int) else tuple(given)
    if not all(-array.ndim < axis < array.ndim and axis for axis in axes):
        raise Error(
            f"reduce_axes={given!r}: give axes of inputs, which has shape {array.shape}, without the batch's, 0."
        )
    return axes


def _numbers_of(model: nn.Module) -> tuple[torch.dtype, torch.device | None]:
    """Return the dtype and device of the model's floating-point parameters."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return parameter.dtype, parameter.device
    return torch.get_default_dtype(), None


class ArrayModel(Reading):
    """A Hugging Face model as a function of one array of numbers that returns logits, as Quantus expects models.

    Parameters
    ----------
    network
        The model, in evaluation mode.
    name
        The argument that takes the array. None takes the model's main input, such as "pixel_values", or
        "inputs_embeds" if that is token ids.
    arguments
        Further arguments of the model for this batch, such as `attention_mask`.

    Examples
    --------
    >>> from conserva.integrations.quantus import ArrayModel
    >>> task = conserva.load()
    >>> inputs = task.tokenizer(["a joy.", "not much."], padding=True, return_tensors="pt")
    >>> model = ArrayModel(task.model, attention_mask=inputs["attention_mask"])
    >>> model.embedded(inputs["input_ids"]).shape
    (2, 5, 192)
    """

    def __init__(self, network: nn.Module, name: str | None = None, **arguments: Any) -> None:
        if not isinstance(network, nn.Module):
            raise Error(f"network={network!r:.80} is not a torch.nn.Module.")
        super().__init__(network)
        main = getattr(network, "main_input_name", EMBEDDINGS)
        self.name = name or (EMBEDDINGS if main == "input_ids" else main)
        self.arguments = arguments
        for given in (self.name, *arguments):
            if given not in parameters_of(network):
                raise Error(f"{type(network).__name__} has no argument {given!r}: give one of its forward().")

    def embedded(self, ids: Tensor) -> np.ndarray:
        """Return the word embeddings of token ids, samples x tokens x numbers, in float32 or wider."""
        table = getattr(self.network, "get_input_embeddings", lambda: None)()
        if not isinstance(table, nn.Module) or self.name != EMBEDDINGS:
            raise Error(f"{type(self.network).__name__} takes {self.name!r}, and not the embeddings of tokens.")
        with torch.no_grad():
            array: np.ndarray = in_float32(table(torch.as_tensor(ids).to(_numbers_of(table)[1]))).cpu().numpy()
        return array

    def forward(self, inputs: Tensor) -> Tensor:
        for name, value in self.arguments.items():
            if isinstance(value, Tensor) and value.dim() and len(value) != len(inputs):
                raise Error(
                    f"{name} has {len(value)} rows, and the batch has {len(inputs)}: give the metric these samples in "
                    f"one batch, with batch_size={len(value)}, or make an ArrayModel for each batch."
                )
        output = self.ask(**{self.name: inputs.to(_numbers_of(self.network)[0])}, **self.arguments)
        logits: Tensor = getattr(output, "logits", output)
        return logits
