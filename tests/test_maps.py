"""Attention maps: those of every Hugging Face type equal what the model itself reports, from any implementation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conserva
import zoo
from conserva.methods.attended import attend
from conserva.methods.registry import find
from test_zoo import BATCH_SENSITIVE, MODEL_TYPES, WORKING, made, mixture, one_of
from tiny import Classifier, HandWritten, Translator, bert, llama, tokens

REFUSED = set(
    """aimv2""".split()
)
"""Model types whose attention maps cannot be followed from layer to layer: gae refuses them, and says why."""

REPORT_OTHERS: dict[str, str] = {}
"""Model types that report something else as their attentions, with the reason."""


def reported(model: nn.Module, inputs: dict[str, Any]) -> list[Tensor] | None:
    """Return the maps that a Hugging Face model reports, in the order of its layers."""
    output = model(**inputs, output_attentions=True)
    if getattr(output, "cross_attentions", None) and getattr(output, "encoder_attentions", None):
        pairs = zip(output.decoder_attentions, output.cross_attentions, strict=True)
        return [*output.encoder_attentions, *(one for pair in pairs for one in pair)]
    return list(output.attentions) if getattr(output, "attentions", None) else None


@pytest.mark.parametrize("specimen", WORKING, ids=MODEL_TYPES)
def test_maps_equal_those_the_model_reports(specimen: zoo.Specimen) -> None:
    model, inputs = made(specimen)
    if specimen.model_type in REFUSED:
        with pytest.raises(conserva.Error) as error:
            find("gae").apply(model, inputs, mixture)
        assert "relevance does" in str(error.value) or "followed" in str(error.value)
        return
    found = [one.probabilities for one in attend(model, inputs, mixture).maps]
    if specimen.model_type in REPORT_OTHERS:
        pytest.skip(REPORT_OTHERS[specimen.model_type])
    try:
        eager = zoo.build(specimen, attn_implementation="eager")
        expected = reported(eager, inputs)
    except (ValueError, TypeError, NotImplementedError, RuntimeError, AttributeError) as failure:
        pytest.skip(f"the model does not report its maps: {str(failure).splitlines()[0][:80]}")
    if expected is None or any(one is None for one in expected):
        pytest.skip("the model does not report its maps")
    assert [one.shape for one in found] == [one.shape for one in expected]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other.detach().to(one), rtol=1e-4, atol=1e-5)
