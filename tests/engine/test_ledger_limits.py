"""The ledger with constants that are infinite, that overflow, or that were made in inference mode."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conserva
from conserva.engine import constants
from tiny import llama, tokens

WIDTH = 6


class Scorer(nn.Module):
    """An attention and a linear layer, whose output is summed over all positions; `mask` is added to the logits."""

    def __init__(self, mask: Tensor | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
        self.register_buffer("offset", torch.randn(WIDTH))
        self.register_buffer("mask", torch.zeros(4) if mask is None else mask)

    def forward(self, x: Tensor) -> Tensor:
        x = F.scaled_dot_product_attention(x, x, self.value(x)) + x
        x = F.linear(F.layer_norm(x, (WIDTH,), None, self.offset), self.value.weight, self.offset)
        return self.out(x).sum(1) + self.mask


def inputs(samples: int, length: int = 5) -> Tensor:
    return torch.randn(samples, length, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_neither_overflows_nor_rounds_the_sums_of_gradients(dtype: torch.dtype) -> None:
    model, x = Scorer().eval(), inputs(1, 1000)  # float16 gradients are scaled by 256, so that their sum is 256,000
    with torch.no_grad():
        model.out.weight.mul_(0.01)  # in bfloat16, the output must be accurate
    exact = conserva.relevance(model, x, 1, rules="ah+ln")
    with torch.autocast("cpu", dtype):
        result = conserva.relevance(model, x, 1, rules="ah+ln")
    torch.testing.assert_close(result.modules["out"], exact.modules["out"], rtol=1e-5, atol=0)
    for name, share in exact.modules.items():
        torch.testing.assert_close(result.modules[name], share, rtol=0.01, atol=0.01 * float(exact.output))


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("rules", ["exact", "ah+ln"])
def test_impossible_classes_have_no_share_in_the_others(samples: int, rules: str) -> None:
    plain = conserva.relevance(Scorer().eval(), inputs(samples), 1, rules=rules).ledger
    mask = torch.tensor([0.0, 0.0, -math.inf, -math.inf])
    masked = conserva.relevance(Scorer(mask).eval(), inputs(samples), 1, rules=rules).ledger
    torch.testing.assert_close(masked.biases, plain.biases)
    torch.testing.assert_close(masked.gap, plain.gap)


@pytest.mark.parametrize("samples", [1, 3])
def test_constants_made_in_inference_mode_are_recorded(samples: int) -> None:
    model = Scorer().eval()
    expected = conserva.relevance(model, inputs(samples), 1)
    with torch.inference_mode():
        model.offset = model.offset.clone()
    result = conserva.relevance(model, inputs(samples), 1)
    torch.testing.assert_close(result.modules, expected.modules)


@pytest.mark.parametrize("rules", ["exact", "ah+ln"])
def test_a_ledger_that_is_not_finite_is_refused(rules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def overflow(self: constants.Constants, grads: object) -> None:
        for entry in self.entries:
            entry.add(torch.full((1,), math.inf if entry.of_layer else 0.0))

    monkeypatch.setattr(constants.Constants, "weigh", overflow)
    with pytest.raises(conserva.Error, match=r"has nan or inf: the constants of .*out"):
        conserva.relevance(Scorer().eval(), inputs(1), 1, rules=rules)


class Reusing(Scorer):
    """Changes a constant in place after its use; `useful` tells whether the output depends on the sum."""

    add = staticmethod(lambda x, constant: x + constant)
    useful = True

    def forward(self, x: Tensor) -> Tensor:
        constant = self.offset.clone()
        y = self.add(x, constant)
        constant.zero_()
        return super().forward(y if self.useful else x)


ADDITIONS = {
    "vector": lambda x, constant: x + constant,
    "matrix": lambda x, constant: x + constant.expand(x.shape[1:]),
    "linear": lambda x, constant: F.linear(x, torch.eye(WIDTH), constant),
    "norm": lambda x, constant: F.layer_norm(x, (WIDTH,), None, constant),
}


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("name", ADDITIONS)
def test_constants_that_change_in_place_after_their_use_are_refused(name: str, samples: int) -> None:
    model = Reusing().eval()
    model.add = ADDITIONS[name]
    with pytest.raises(conserva.Error, match="changes a tensor in place after it added it"):
        conserva.relevance(model, inputs(samples), 1, rules="ah+ln")
    plain = conserva.relevance(model, inputs(samples), 1, rules="ah+ln", ledger=False)
    assert torch.isfinite(plain.scores()).all()
    model.useful = False
    assert conserva.relevance(model, inputs(samples), 1).ledger.gap.abs().max() < 1e-5


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_output_near_0_in_which_relevance_cancels_is_explained(dtype: torch.dtype, samples: int) -> None:
    model = llama(num_labels=2).to(dtype)
    inputs = {"input_ids": tokens(batch=samples, length=7)["input_ids"]}
    states: list[Tensor] = []
    hook = model.score.register_forward_pre_hook(lambda module, args: states.append(args[0].detach()))
    model(**inputs)
    hook.remove()
    read = states[0][:, -1]  # the states that the scores are computed from
    with torch.no_grad():  # a row of weights that is orthogonal to all of them
        row = model.score.weight[1]
        row -= torch.linalg.lstsq(read.T, row[:, None]).solution[:, 0] @ read
    found = conserva.relevance(model, inputs, 1, rules="exact")
    assert found.ledger is not None
    sizes = found.values["input_ids"].flatten(1).abs().sum(1)
    assert (found.output.abs() < 1e-5 * sizes).all()  # else this shows nothing
    assert (found.ledger.gap_share > 1e-3).any()
    assert (found.ledger.gap.abs() < 1e-5 * sizes).all()
