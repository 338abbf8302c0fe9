"""A model that answers at random is refused, and told which call draws."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import ViTMAEConfig, ViTMAEForPreTraining, Wav2Vec2Config, Wav2Vec2ForSequenceClassification

import conserva
from tiny import HandWritten, bert, shake, tokens


class Noisy(HandWritten):
    """A model with something at random in it."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(0)
        self.noise = Draw(draw)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        return self.out(self.norm(self.noise(x) + F.scaled_dot_product_attention(x, x, x)).mean(1))


class Draw(nn.Module):
    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(x)


def without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        noise = torch.randn_like(x)
    return x + noise


OWN = torch.Generator().manual_seed(0)
NOISE: dict[str, Callable[[Tensor], Tensor]] = {
    "rand": lambda x: x + torch.rand(x.shape),
    "randn": lambda x: x + torch.randn_like(x),
    "without a gradient": without_gradient,
    "normal_": lambda x: x + torch.empty_like(x).normal_(),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "feature_dropout": lambda x: torch.feature_dropout(x, 0.5, True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "randperm": lambda x: x[:, torch.randperm(x.shape[1])],
    "randint": lambda x: x.roll(int(torch.randint(1, 1000, ())), -1) * torch.rand(()),
    "multinomial": lambda x: x * torch.multinomial(torch.ones(100), 12),
    "gumbel": lambda x: x + F.gumbel_softmax(x.detach()),
    "a generator of its own": lambda x: x + torch.randn(x.shape, generator=OWN),
    "Python's": lambda x: x * random.random(),
    "numpy's": lambda x: x * float(np.random.rand()),
}


@pytest.mark.parametrize("name", NOISE)
@pytest.mark.parametrize("rules", ["gi", "exact"])
def test_an_answer_at_random_is_refused_with_the_call_that_drew(name: str, rules: str) -> None:
    model = shake(Noisy(NOISE[name]))
    with pytest.raises(conserva.Error, match=r"output is random.*draws random numbers"):
        conserva.relevance(model, torch.randint(0, 50, (2, 5)), 1, rules=rules)


def test_the_call_and_the_module_are_named() -> None:
    model = shake(Noisy(NOISE["bernoulli"]))
    with pytest.raises(conserva.Error, match=r"aten\.bernoulli.*module 'noise'.*model\.eval\(\)"):
        conserva.relevance(model, torch.randint(0, 50, (2, 5)), 1)
    with pytest.raises(conserva.Error, match=r"numpy\.random draws"):
        conserva.relevance(shake(Noisy(NOISE["numpy's"])), torch.randint(0, 50, (2, 5)), 1)


def seeded(x: Tensor) -> Tensor:
    return x + torch.randn(x.shape, generator=torch.Generator().manual_seed(3))


def seeded_numpy(x: Tensor) -> Tensor:
    np.random.seed(0)
    return x * float(np.random.rand())


HARMLESS: dict[str, Callable[[Tensor], Tensor]] = {
    "drawn, not used": lambda x: x if torch.rand(()) < 2 else 2 * x,
    "the same each time": seeded,
    "numpy's, the same each time": seeded_numpy,
    "no dropout": lambda x: F.dropout(x, 0.0, True),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_draws_without_effect_are_no_reason_to_refuse(name: str) -> None:
    model = shake(Noisy(HARMLESS[name]))
    ids = torch.randint(0, 50, (2, 5))
    expected = model(ids)[:, 1]
    torch.testing.assert_close(conserva.relevance(model, ids, 1).output, expected)


def test_generators_are_left_as_the_model_leaves_them() -> None:
    model, ids = shake(Noisy(HARMLESS["drawn, not used"])), torch.randint(0, 50, (2, 5))
    torch.manual_seed(5)
    model(ids)
    expected = torch.rand(3)
    torch.manual_seed(5)
    conserva.relevance(model, ids, 1)
    assert torch.equal(torch.rand(3), expected)


def test_a_masked_autoencoder_is_explained_with_its_noise() -> None:
    torch.manual_seed(0)
    config = ViTMAEConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=16, patch_size=4,
        decoder_num_attention_heads=2, decoder_hidden_size=16, decoder_num_hidden_layers=1,
        decoder_intermediate_size=24,
    )  # fmt: skip
    model, pixels = shake(ViTMAEForPreTraining(config)), torch.randn(1, 3, 16, 16)
    target = lambda output: output.logits.flatten(1)[:, 0]  # noqa: E731
    with pytest.raises(conserva.Error, match="noise="):
        conserva.relevance(model, {"pixel_values": pixels}, target, rules="exact")
    result = conserva.relevance(model, {"pixel_values": pixels, "noise": torch.rand(1, 16)}, target, rules="exact")
    assert result.ledger.gap.abs().max() < 1e-4


def test_layers_that_could_be_dropped_in_training_are_not_in_the_way() -> None:
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, conv_dim=(8, 8),
        conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, classifier_proj_size=8, layerdrop=0.5,
    )  # fmt: skip
    model = shake(Wav2Vec2ForSequenceClassification(config))
    result = conserva.relevance(model, {"input_values": torch.randn(1, 400)}, 1, rules="exact")
    assert result.ledger.gap.abs().max() < 1e-4


def test_a_model_in_training_is_told_to_leave_it() -> None:
    with pytest.raises(conserva.Error, match=r"model\.eval\(\)"):
        conserva.relevance(bert().train(), tokens(), 1)
