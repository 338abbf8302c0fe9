"""One forward pass under rules, and the explained number of each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Error
from . import checks, compiled
from .autograd_graph import nodes_between
from .context import Propagation
from .inputs import Inputs
from .nonfinite import first_nonfinite_module
from .quantized import explicit_biases
from .randomness import generator_states, refuse_random
from .sources import Sources
from .targets import Target, labels_of, read_target
from .untouched import untouched


def forward(
    model: nn.Module,
    call: Inputs,
    sources: Sources,
    context: Propagation,
    targets: Sequence[Target | Sequence[Target] | Tensor],
) -> tuple[Any, list[Tensor]]:
    """Run the model in a context, and check that the targets are finite and depend on the explained inputs.

    Parameters
    ----------
    model
        The model.
    call
        Its arguments.
    sources
        The tensors whose relevance is requested.
    context
        The rules.
    targets
        What to explain: see `targets.read_target`.

    Returns
    -------
    tuple
        The model's output, and for each target a tensor with one number per sample.
    """
    # Class indices in a tensor are read before the model runs: reading them later would synchronise with the device.
    wanted = [target.tolist() if isinstance(target, Tensor) else target for target in targets]
    opened, before = call.replaced(sources.open_inputs()), generator_states()
    try:
        with explicit_biases(sources.modules), sources.watching(), context:
            output = opened.run(model)
    except Exception as error:
        if refusal := compiled.refusal(model, error):
            raise refusal from error
        raise
    finally:
        sources.close()
    labels, samples = labels_of(model), call.samples()
    numbers = [read_target(output, target, labels, samples) for target in wanted]
    context.target_nodes = nodes_between(numbers, _tensors(output))
    _check(model, call, sources, context, numbers)

    def answer() -> list[Tensor]:
        plain = call.run(model)
        return [read_target(plain, target, labels, samples) for target in wanted]

    refuse_random(model, before, context.generators, answer)
    return output, numbers


def _tensors(output: Any) -> list[Tensor]:
    """Return the tensors in a model's output."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        output = list(output.values())
    parts = output if isinstance(output, (tuple, list)) else getattr(output, "__dict__", {}).values()
    return [x for part in parts for x in (_tensors(part) if isinstance(part, (Tensor, tuple, list, Mapping)) else ())]


def _check(model: nn.Module, call: Inputs, sources: Sources, context: Propagation, numbers: Sequence[Tensor]) -> None:
    """Raise unless every number is finite and depends on the explained inputs."""
    check_finite(model, call, numbers)
    if missing := sources.missing():
        raise Error(
            f"{missing} does not reach the output: the model never looked it up in an embedding table. If a module "
            "embeds the ids in another way, pass its name as at='...'."
        )
    if not all(number.requires_grad for number in numbers):
        raise Error(
            f"{', '.join(map(repr, sources.leaves))} does not reach the output under rules={context.rules.name!r}: no "
            "gradient flows. If the model ends in a softmax, explain the logits before it; if it is quantised to "
            "integers, which have no gradient, explain it before quantisation."
        )


def check_finite(model: nn.Module, call: Inputs, numbers: Sequence[Tensor]) -> None:
    """Raise unless every number is finite; the error names the first module whose output is not."""
    dtype = numbers[0].dtype

    def otherwise() -> Error:
        def again() -> None:
            with torch.no_grad():
                call.run(model)

        with untouched(model):
            where = first_nonfinite_module(model, again)
        return Error(f"The output has nan or inf, first in module {where!r}.{advice(dtype)}")

    checks.require(checks.all_finite(numbers).all(), otherwise)


def advice(dtype: torch.dtype) -> str:
    """Return advice on values that are not finite, for an error message; "" if the dtype gives no hint."""
    return " float16 overflows beyond 65504: use bfloat16 or float32." if dtype == torch.float16 else ""
