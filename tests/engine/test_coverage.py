"""What met a rule is counted; what cannot be reached is refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import conserva
from tiny import HandWritten, bert, shake, tokens


def test_every_operation_is_listed_under_its_module() -> None:
    met = conserva.relevance(bert(), tokens(), 1, rules="exact").coverage
    rows = {(m.module, m.kind, m.function): (m.rule, m.times) for m in met}
    for i in range(2):
        layer = f"bert.encoder.layer.{i}"
        assert rows[f"{layer}.attention.self", "attention", "scaled_dot_product_attention"] == ("freeze", 1)
        assert rows[f"{layer}.output.LayerNorm", "norm", "layer_norm"] == ("freeze", 1)
        assert rows[f"{layer}.intermediate.intermediate_act_fn", "activation", "gelu"] == ("ratio", 1)
        assert rows[f"{layer}.attention.self.query", "linear", "linear"] == ("zero", 1)
    assert rows["bert.pooler.activation", "activation", "tanh"] == ("ratio", 1)


def test_compiled_models_and_parts_are_refused() -> None:
    with pytest.raises(conserva.Error, match="the model is compiled"):
        conserva.relevance(torch.compile(bert()), tokens(), 1)
    model = bert()
    model.bert.encoder.layer[1].compile()
    with pytest.raises(conserva.Error, match=r"bert.encoder.layer.1' is compiled"):
        conserva.relevance(model, tokens(), 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_models_are_refused() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x, -1)

    model = shake(HandWritten())
    model.extra = torch.jit.script(Inner())
    with pytest.raises(conserva.Error, match="'extra' is scripted"):
        conserva.relevance(model, torch.tensor([[1, 2]]), 1)


class ForeignAttention(torch.autograd.Function):
    """What a package's own attention kernel looks like from outside."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return grad, grad, grad


class Foreign(HandWritten):
    """A model whose attention runs in a kernel of its own."""

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = self.qkv(self.words(ids)).chunk(3, -1)
        return self.out(ForeignAttention.apply(q, k, v).mean(1))


@pytest.mark.parametrize("rules", ["gi", "ah+ln", "exact"])
def test_a_foreign_kernel_is_refused(rules: str) -> None:
    with pytest.raises(conserva.Error, match="ForeignAttention is a foreign autograd function"):
        conserva.relevance(shake(Foreign()), torch.tensor([[1, 2]]), 1, rules=rules)


class QuantisedLinear(torch.autograd.Function):
    """What a quantised layer looks like: linear, and not torch's own."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ ctx.saved_tensors[0], None


def test_a_foreign_linear_function_can_be_trusted() -> None:
    class Quantised(HandWritten):
        def forward(self, ids: Tensor) -> Tensor:
            weight = self.words.weight[:12].detach()
            return super().forward(ids) + QuantisedLinear.apply(self.words(ids).mean(1), weight)[:, :4]

    model, ids = shake(Quantised().double()), torch.tensor([[1, 2]])
    with pytest.raises(conserva.Error, match=r"trusted=\['QuantisedLinear'\]"):
        conserva.relevance(model, ids, 1, rules="exact")
    result = conserva.relevance(model, ids, 1, rules="exact", trusted=["QuantisedLinear"])
    assert result.ledger.gap.abs().max() < 1e-12


def test_a_foreign_attention_without_gradient_is_refused() -> None:
    class Kernel(HandWritten):
        def forward(self, ids: Tensor) -> Tensor:
            return self.out(self.words(ids).mean(1))

    model = shake(Kernel())
    model.config = type("Config", (), {"_attn_implementation": "flash_attention_2"})()
    with pytest.raises(conserva.Error, match="set_attn_implementation"):
        conserva.relevance(model, torch.tensor([[1, 2]]), 1)


def test_attention_computed_behind_the_context_is_refused() -> None:
    """A backend call that torch does not show to the context still stands in the graph."""

    class Hidden(HandWritten):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids)
            with torch._C.DisableTorchFunction():
                x = torch.softmax(x @ x.transpose(1, 2), -1) @ x
            return super().forward(ids) + self.out(x.mean(1))

    with pytest.raises(
        conserva.Error, match=r"is not part of an attention that conserva recognises.*Found in Hidden itself"
    ):
        conserva.relevance(shake(Hidden()), torch.tensor([[1, 2]]), 1)


def test_norms_computed_behind_the_context_are_refused() -> None:
    class Hidden(HandWritten):
        def norm(self, x: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():
                return F.layer_norm(x, x.shape[-1:])

    with pytest.raises(conserva.Error, match=r"a norm \(NativeLayerNorm\) to which no rule of 'exact' was applied"):
        conserva.relevance(shake(Hidden()), torch.tensor([[1, 2]]), 1)


def test_parameters_used_behind_the_context_are_refused() -> None:
    class Hidden(HandWritten):
        def forward(self, ids: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():
                scale = self.gain * 1
            return super().forward(ids) * scale[:4]

    with pytest.raises(conserva.Error, match="Parameter 'gain'"):
        conserva.relevance(shake(Hidden()), torch.tensor([[1, 2]]), 1)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_reentrant_checkpoints_are_refused() -> None:
    class Reentrant(HandWritten):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) + checkpoint(self.out, self.words(ids).mean(1), use_reentrant=True)

    with pytest.raises(conserva.Error, match="use_reentrant=False"):
        conserva.relevance(shake(Reentrant()), torch.tensor([[1, 2]]), 1)


def test_tied_weights_are_fine() -> None:
    class Tied(HandWritten):
        def forward(self, ids: Tensor) -> Tensor:
            hidden = self.words(ids)
            hidden = hidden + F.scaled_dot_product_attention(hidden, hidden, hidden)
            return hidden[:, -1] @ self.words.weight.T

    result = conserva.relevance(shake(Tied().double()), torch.tensor([[1, 2]]), 7, rules="exact")
    assert result.ledger.gap.abs().max() < 1e-12
