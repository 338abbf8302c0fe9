"""Every Hugging Face type of the zoo: the forward is unchanged, attention and norms are reached, the books close."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import conserva
import zoo
from zoo_types import (
    BILINEAR,
    MODEL_TYPES,
    REFUSED,
    WORKING,
    Narrowing,
    explained,
    made,
    mixture,
    one_of,
    rules_for,
    scale_of,
)

WITHOUT_NORMS = ("levit", "mobilebert")
"""They have batch norms, or a scale and a shift, which are linear."""


WITHOUT_RESIDUAL_SUMS = ("deepseek_v4",)
"""They mix several streams by matrices in place of a sum."""


def books(specimen: zoo.Specimen, model: torch.nn.Module, inputs: dict[str, Any], rules: str = "exact") -> Any:
    return conserva.relevance(model, inputs, mixture, rules=rules_for(specimen, rules))


@pytest.mark.parametrize("specimen", WORKING, ids=MODEL_TYPES)
def test_books_close_and_forward_is_unchanged(specimen: zoo.Specimen) -> None:
    model, inputs = made(specimen)
    plain = model(**inputs)
    # Without books the samples are never taken one at a time, so both forward passes see the same batch.
    ruled = conserva.relevance(model, inputs, mixture, rules=rules_for(specimen, "exact"), ledger=False)
    assert (ruled.output - mixture(plain)).abs().max() <= 1e-6 * scale_of(plain)
    result = explained(specimen)
    assert result.ledger.gap.abs().max() <= 1e-5 * scale_of(plain)
    met = {kind: sum(m.times for m in result.coverage if m.kind == kind) for kind in ("attention", "norm")}
    assert met["attention"] >= 1
    assert met["norm"] >= 1 or specimen.model_type in WITHOUT_NORMS
    if specimen.family == "encoder-decoder":
        assert "decoder_input_ids" in result.values


@pytest.mark.parametrize("specimen", WORKING, ids=MODEL_TYPES)
def test_batch_equals_single(specimen: zoo.Specimen) -> None:
    model, inputs = made(specimen)
    together = explained(specimen)
    if len(together.output) == 1:
        pytest.skip("the model packs its samples, or answers them together")
    single = books(specimen, model, one_of(inputs))
    scale = scale_of(model(**inputs))
    for entry in ("output", "inputs", "positions", "biases"):
        difference = getattr(single.ledger, entry)[0] - getattr(together.ledger, entry)[0]
        assert difference.abs() <= 1e-4 * scale


@pytest.mark.parametrize("specimen", WORKING, ids=MODEL_TYPES)
def test_books_close_in_float64(specimen: zoo.Specimen) -> None:
    narrowing = Narrowing()
    try:
        model, inputs = made(specimen, dtype=torch.float64)
        with torch.no_grad(), narrowing:
            scale = scale_of(model(**inputs))
    except RuntimeError as error:
        pytest.skip(f"the model itself does not run in float64: {str(error).splitlines()[0][:80]}")
    if not torch.isfinite(scale):
        pytest.skip("the model itself is not finite in float64")
    for rules in ("exact", "exact+res"):
        found = books(specimen, model, inputs, rules)
        assert found.ledger.gap.abs().max() <= (1e-5 if narrowing.seen else 1e-10) * scale
    assert specimen.model_type in WITHOUT_RESIDUAL_SUMS or any(met.kind == "residual" for met in found.coverage)


@contextmanager
def _absent_kernel(kernel: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, NotImplementedError, RuntimeError) as error:
        pytest.skip(f"has no {kernel} attention: {str(error).splitlines()[0][:80]}")


@pytest.mark.parametrize("specimen", WORKING, ids=MODEL_TYPES)
def test_eager_equals_sdpa(specimen: zoo.Specimen) -> None:
    results = []
    for kernel in ("eager", "sdpa"):
        with _absent_kernel(kernel):
            model, inputs = made(specimen, attn_implementation=kernel)
            model(**inputs)
        results.append(conserva.relevance(model, inputs, mixture, rules=rules_for(specimen, "ah+ln")))
    eager, fused = results
    scale = max(value.abs().max() for value in eager.values.values())
    if (eager.output - fused.output).abs().max() > 1e-5 * eager.output.abs().max():
        pytest.skip("the model's own two kernels disagree in the forward pass")
    for place in eager.values:
        assert (eager.values[place] - fused.values[place]).abs().max() <= 1e-4 * scale


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_what_cannot_be_explained_is_refused(model_type: str) -> None:
    specimen = next(s for s in zoo.SPECIMENS if s.model_type == model_type)
    model = zoo.build(specimen)
    with pytest.raises(conserva.Error):
        books(specimen, model, zoo.inputs(specimen, model))


@pytest.mark.parametrize("rules", ["ah+ln", "exact"])
@pytest.mark.parametrize("model_type", sorted(BILINEAR))
def test_a_matrix_product_that_is_not_attention_asks_for_a_rule(model_type: str, rules: str) -> None:
    specimen = next(s for s in zoo.SPECIMENS if s.model_type == model_type)
    model = zoo.build(specimen)
    with pytest.raises(conserva.Error, match="bilinear='half'"):
        conserva.relevance(model, zoo.inputs(specimen, model, batch=1), mixture, rules=rules)


def test_the_zoo_is_large() -> None:
    assert len(WORKING) >= 300
    assert {s.family for s in WORKING} >= {"encoder", "decoder", "encoder-decoder", "vision", "moe"}


@pytest.mark.parametrize("rules", ["exact", "ah+ln"])
def test_the_instance_norms_of_a_head_are_norms(rules: str) -> None:
    """Sapiens2's heads have such norms, which its backbone, the type of the zoo, has not."""
    from transformers import Sapiens2ForNormalEstimation
    from transformers.models.sapiens2.configuration_sapiens2 import Sapiens2HeadConfig

    specimen = next(s for s in zoo.SPECIMENS if s.model_type == "sapiens2")
    config = zoo.build(specimen).config
    sizes = {"upsample_out_channels": [16, 16], "upsample_kernel_sizes": [4, 4]}
    config.head_config = Sapiens2HeadConfig(**sizes, conv_out_channels=[8], conv_kernel_sizes=[1])
    torch.manual_seed(0)
    model = Sapiens2ForNormalEstimation(config).eval().double()
    pixels = torch.randn(1, 3, 32, 32).double()
    result = conserva.relevance(model, {"pixel_values": pixels}, mixture_of_normals, rules=rules)
    assert any(met.kind == "norm" and met.function == "group_norm" and met.rule == "freeze" for met in result.coverage)
    if rules == "exact":
        assert result.ledger.gap.abs().max() < 1e-5 * result.output.abs().max()


def mixture_of_normals(output: Any) -> Tensor:
    normals = next(x for x in output.values() if isinstance(x, Tensor) and x.is_floating_point())
    return (
        (normals * torch.randn(normals.shape, generator=torch.Generator().manual_seed(1)).to(normals)).flatten(1).sum(1)
    )


def test_bloom_by_its_own_gradient() -> None:
    """BLOOM's GELU is an autograd function of its own: trusted, it is differentiated, which is `ah+ln`."""
    specimen = next(s for s in zoo.SPECIMENS if s.model_type == "bloom")
    model = zoo.build(specimen)
    inputs = zoo.inputs(specimen, model)
    result = conserva.relevance(model, inputs, mixture, rules="ah+ln", trusted=["GeLUFunction"])
    x = model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
    with conserva.rules("ah+ln"):
        output = mixture(model(inputs_embeds=x, attention_mask=inputs["attention_mask"], use_cache=False))
    expected = x * torch.autograd.grad(output.sum(), x)[0]
    torch.testing.assert_close(result.values["input_ids"], expected.detach(), rtol=1e-4, atol=1e-6)


def test_canine_by_the_module_that_hashes_its_characters() -> None:
    specimen = next(s for s in zoo.SPECIMENS if s.model_type == "canine")
    model = zoo.build(specimen)
    result = conserva.relevance(model, zoo.inputs(specimen, model), mixture, rules="exact", at="*char_embeddings")
    assert result.ledger.gap.abs().max() <= 1e-5 * result.output.abs().max()
