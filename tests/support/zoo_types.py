"""What tests share: zoo types."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import conserva
import zoo
from conserva.engine.targets import scores_of

REFUSED = {
    "bloom": "its GELU is an autograd function of its own; `trusted=['GeLUFunction']` with `ah+ln` works",
    "apertus": "its activation has parameters of its own",
    "gemma3n_text": "a threshold of its MLP is made of a standard deviation, which is added and not divided by",
    "hrm_text": "it runs most of its cycles without a gradient, and adds what they found",
    "nemotron3_5_asr": "its decoder is an LSTM",
    "nemotron_asr_streaming": "its decoder is an LSTM",
    "parakeet_rnnt": "its decoder is an LSTM",
    "parakeet_tdt": "its decoder is an LSTM",
    "recurrent_gemma": "its recurrence takes a root in an autograd function of its own",
    "sew-d": "its softmax is an autograd function of its own",
    "yoso": "its attention is an autograd function of its own",
}
"""Model types that build and are not explained as they are, each with the reason."""


_STATE_SPACE = "its state-space layers multiply live matrices"


_LINEAR_ATTENTION = "its linear attention has no softmax"


_CONTRASTIVE = "its output is a product of two embeddings"


BILINEAR = {
    **dict.fromkeys(
        (
            "bamba", "falcon_h1", "granitemoehybrid", "jamba", "nemo_speechlm", "nemotron_h", "zamba", "zamba2",
        ), _STATE_SPACE,
    ),
    **dict.fromkeys(
        (
            "bailing_hybrid", "glm5_next", "kimi_linear", "minicpm_ocr", "minicpmv4_6", "minicpmv4_7", "minimax",
            "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
        ), _LINEAR_ATTENTION,
    ),
    **dict.fromkeys(
        (
            "aimv2", "altclip", "blip", "chinese_clip", "clipseg", "groupvit", "owlv2", "owlvit", "tipsv2",
            "vision-text-dual-encoder", "xclip",
        ), _CONTRASTIVE,
    ),
    "sam3_lite_text": "its masks are products of two embeddings",
}  # fmt: skip
"""Model types with a matrix product of live tensors that is not attention's, each with the reason: they are explained
where the user names a rule for it, `conserva.rules("exact", bilinear="half")`, and refused otherwise."""


WORKING = [specimen for specimen in zoo.SPECIMENS if specimen.model_type not in REFUSED]


MODEL_TYPES = [specimen.model_type for specimen in WORKING]


def mixture(output: Any) -> Tensor:
    """A fixed mixture of all scores of a sample, so that every part of the model matters."""
    scores = scores_of(output)
    weights = torch.randn(scores.shape[1:], generator=torch.Generator().manual_seed(1)).to(scores)
    return (scores * weights).flatten(1).sum(1) / weights.numel() ** 0.5


def scale_of(output: Any) -> Tensor:
    """The output's scale: the mixture's size, or the typical score's where the mixture happens to cancel."""
    scores = scores_of(output).detach()
    return torch.maximum(mixture(output).detach().abs().max(), scores.square().mean().sqrt())


def _state(model: torch.nn.Module) -> Any:
    """Return what changes if something is written into a model. Its own hooks come with its first forward pass."""
    tensors = [(id(x), x._version, x.requires_grad, x.grad is None) for x in (*model.parameters(), *model.buffers())]
    return tensors, [one.training for one in model.modules()], pickle.dumps(model.config)


def _configured(model: torch.nn.Module) -> list[Any]:
    return [one for one in model.modules() if hasattr(one, "config")]


_BUILT: dict[Any, tuple[torch.nn.Module, Any]] = {}
"""The models that were built last, each with its state at that time."""


def shared(specimen: zoo.Specimen, **how: Any) -> torch.nn.Module:
    """Return the model of `zoo.build`, the same to all tests of its type, unless it is not as it was built."""
    if list(how) == ["attn_implementation"]:
        plain = shared(specimen)
        if {getattr(one.config, "_attn_implementation", None) for one in _configured(plain)} == {*how.values()}:
            return plain  # which has this implementation in all of its parts
    key = (specimen, *how.items())
    model, as_built = _BUILT.pop(key, (None, None))
    if model is None or _state(model) != as_built:  # some types change themselves in a forward pass
        model = zoo.build(specimen, **how)
        as_built = _state(model)
    _BUILT[key] = model, as_built
    if len(_BUILT) > 6:
        del _BUILT[next(iter(_BUILT))]
    return model


@lru_cache(maxsize=6)
def _independent(specimen: zoo.Specimen, how: frozenset[tuple[str, Any]]) -> bool:
    """Whether the model answers two samples one by one: not packed together, nor together."""
    model = shared(specimen, **dict(how))
    inputs = zoo.inputs(specimen, model)
    try:
        with torch.no_grad():
            together, single = mixture(model(**inputs)), mixture(model(**one_of(inputs)))
        return len(together) == 2 and torch.allclose(together[:1], single, rtol=1e-3, atol=1e-4)
    except (RuntimeError, ValueError, IndexError, StopIteration):
        return False


def made(specimen: zoo.Specimen, **how: Any) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Return the shared model and two samples; one where samples are packed or answered together by the model."""
    model = shared(specimen, **how)
    batch = 2 if _independent(specimen, frozenset(how.items())) else 1
    return model, zoo.inputs(specimen, model, batch=batch)


@lru_cache(maxsize=2)
def explained(specimen: zoo.Specimen) -> conserva.engine.passes.Relevance:
    """Return the relevance of what `made` returns, under the rules "exact"."""
    model, inputs = made(specimen)
    return conserva.relevance(model, inputs, mixture, rules=rules_for(specimen, "exact"))


def one_of(inputs: dict[str, Any]) -> dict[str, Any]:
    return {k: v[:1] if isinstance(v, Tensor) and v.dim() and len(v) == 2 else v for k, v in inputs.items()}


def rules_for(specimen: zoo.Specimen, rules: str) -> Any:
    return conserva.rules(rules, bilinear="half") if specimen.model_type in BILINEAR else rules


class Narrowing(TorchDispatchMode):
    """Notes whether a float64 model computes some of it in float32."""

    seen = False

    def __torch_dispatch__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.dtype in (torch.float32, torch.bfloat16, torch.float16):
            self.seen = True
        return out
