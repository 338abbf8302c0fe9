"""One forward pass in a context, down to the explained number of each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Error
from . import checks, compiled
from .autograd_graph import nodes_between
from .context import Propagation
from .diagnosis import first_bad_module
from .inputs import Inputs
from .quantized import biases_in_sight
from .randomness import draws_now, refuse_random
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
    """Run the model in the context; return its output, and the numbers of each target, finite and reached."""
    # Classes in a tensor are read before the model runs: reading them waits until the device has done all its work.
    wanted = [target.tolist() if isinstance(target, Tensor) else target for target in targets]
    opened, before = call.replaced(sources.open_inputs()), draws_now()
    try:
        with biases_in_sight(model.modules()), sources.watching(), context:
            output = opened.run(model)
    except Exception as error:
        if found := compiled.refusal(model, error):
            raise found from error
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
    """Return the tensors in what a model returned."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        output = list(output.values())
    parts = output if isinstance(output, (tuple, list)) else getattr(output, "__dict__", {}).values()
    return [x for part in parts for x in (_tensors(part) if isinstance(part, (Tensor, tuple, list, Mapping)) else ())]


def _check(model: nn.Module, call: Inputs, sources: Sources, context: Propagation, numbers: Sequence[Tensor]) -> None:
    """Raise unless every number is finite and every feature reaches it."""
    check_finite(model, call, numbers)
    if missing := sources.missing():
        raise Error(
            f"{missing} does not reach the output: the model never looked it up in a table of embeddings. If it "
            "turns ids into numbers in another way, name the module that does: at='...'."
        )
    if not all(number.requires_grad for number in numbers):
        raise Error(
            f"{', '.join(map(repr, sources.leaves))} does not reach the output under rules={context.rules.name!r}. "
            "If the model ends in a softmax, explain the scores before it; if it computes in whole numbers, which have "
            "no gradient, explain it as it was before it was quantised."
        )


def check_finite(model: nn.Module, call: Inputs, numbers: Sequence[Tensor]) -> None:
    """Raise unless every number is finite, and name the module where it begins."""
    dtype = numbers[0].dtype

    def otherwise() -> Error:
        def again() -> None:
            with torch.no_grad():
                call.run(model)

        with untouched(model):
            where = first_bad_module(model, again)
        return Error(f"The output has nan or inf. It arises first in module {where!r}.{advice(dtype)}")

    checks.require(checks.all_finite(numbers).all(), otherwise)


def advice(dtype: torch.dtype) -> str:
    """Return what to do about numbers that are not finite, where the dtype tells."""
    return " float16 overflows beyond 65504: use bfloat16 or float32." if dtype == torch.float16 else ""
