"""AttnLRP by LXT (Achtibat et al., 2024) as a contender: its own patches, applied to a copy of transformers' Llama.

LXT replaces methods of transformers' classes and entries of a global table of attention functions. So that the other
contenders still run the originals, it gets a second copy of the module `modeling_llama`, with a table of its own, and a
model of these classes that shares the weights. Its source is not installed but given by path, as it has no release for
this version of transformers.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers.models.llama import modeling_llama

from contenders import Subject, without_gradients


def contender(subject: Subject, source: Path | None) -> Callable[[], Tensor]:
    """Return LXT's explanation; without its source, a contender that says so when it is tried."""

    @functools.cache
    def network() -> nn.Module:
        if source is None:
            raise ModuleNotFoundError("the source of LXT is not given: --lxt PATH")
        return patched(subject.frozen, source)

    def run() -> Tensor:
        x = subject.embeddings().requires_grad_()
        number = subject.scores(network(), x)[:, subject.target].sum()
        [grad] = torch.autograd.grad(number, x)
        return (x * grad).detach().sum(-1)

    return run


def patched(model: nn.Module, source: Path) -> nn.Module:
    """Return a model that shares the weights of another and computes with LXT's patches."""
    if str(source) not in sys.path:
        sys.path.insert(0, str(source))
    from lxt.efficient import monkey_patch
    from lxt.efficient.models import llama

    own = second_copy()
    patches = {
        own if target is modeling_llama else getattr(own, target.__name__): patch
        for target, patch in llama.attnLRP.items()
        if target is not nn.Dropout  # the model has none
    }
    monkey_patch(own, patch_map=patches)
    network = without_gradients(model)
    for module in network.modules():
        kind = type(module)
        if kind.__module__ == modeling_llama.__name__:
            module.__class__ = getattr(own, kind.__name__)
    return network


def second_copy() -> types.ModuleType:
    """Return a copy of transformers' `modeling_llama` with classes and a table of attention functions of its own."""
    name = f"{modeling_llama.__name__}_of_lxt"
    spec = importlib.util.spec_from_file_location(name, modeling_llama.__file__)
    assert spec is not None
    assert spec.loader is not None
    own = importlib.util.module_from_spec(spec)
    sys.modules[name] = own  # transformers looks classes up by their module
    spec.loader.exec_module(own)
    own.ALL_ATTENTION_FUNCTIONS = copy.deepcopy(modeling_llama.ALL_ATTENTION_FUNCTIONS)  # type: ignore[attr-defined]
    return own
