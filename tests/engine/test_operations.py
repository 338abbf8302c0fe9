"""Torch calls, however they are spelled: positions, keywords, methods, overloads."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import conserva
from conserva.engine.operations.readers import READERS

A, B, M = torch.randn(3, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64), torch.eye(3).bool()

CALLS = {
    "add": lambda x: torch.add(input=x, other=A, alpha=2),
    "sub": lambda x: torch.sub(x, other=A),
    "rsub": lambda x: torch.rsub(input=x, other=A),
    "mul": lambda x: torch.mul(input=x, other=x.sin()),
    "div": lambda x: torch.div(input=x, other=A),
    "div by live": lambda x: torch.div(A, other=x),
    "neg": lambda x: torch.neg(input=x),
    "pow": lambda x: torch.pow(input=x, exponent=2),
    "root": lambda x: torch.pow(input=x.abs() + 1, exponent=0.5),
    "gelu": lambda x: F.gelu(input=x, approximate="tanh"),
    "relu": lambda x: F.relu(input=x, inplace=False),
    "clamp": lambda x: torch.clamp(input=x, min=-0.5, max=0.5),
    "clamp by tensors": lambda x: torch.clamp(input=x, min=A - 2, max=A + 2),
    "softmax": lambda x: F.softmax(input=x, dim=-1) @ x,
    "torch.softmax": lambda x: torch.softmax(input=x, dim=-1) @ x,
    "method softmax": lambda x: x.softmax(dim=-1) @ x,
    "matmul": lambda x: torch.matmul(input=x, other=A),
    "mm": lambda x: torch.mm(x, mat2=A),
    "mv": lambda x: torch.mv(x, vec=A[0]),
    "bmm": lambda x: torch.bmm(input=x[None], mat2=A[None]),
    "addmm": lambda x: torch.addmm(A, mat1=x, mat2=B),
    "baddbmm": lambda x: torch.baddbmm(A[None], batch1=x[None], batch2=B[None], beta=0.5),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, A),
    "einsum of axes": lambda x: torch.einsum(x, [0, 1], A, [1, 2], [0, 2]),
    "einsum of a list": lambda x: torch.einsum("ij,jk->ik", [x, A]),
    "linear": lambda x: F.linear(input=x, weight=A, bias=B[0]),
    "layer_norm": lambda x: F.layer_norm(input=x, normalized_shape=(3,), weight=A[0], bias=B[0], eps=1e-3),
    "torch.layer_norm": lambda x: torch.layer_norm(x, (3,), A[0], B[0], 1e-3, True),
    "rms_norm": lambda x: F.rms_norm(input=x, normalized_shape=(3,), weight=A[0]),
    "group_norm": lambda x: F.group_norm(input=x, num_groups=1, weight=A[0], bias=B[0]),
    "normalize": lambda x: F.normalize(input=x, dim=-1),
    "std": lambda x: x / torch.std(input=x, dim=-1, keepdim=True),
    "std_mean": lambda x: torch.std_mean(input=x, dim=-1)[1],
    "vector_norm": lambda x: x / torch.linalg.vector_norm(x=x, dim=-1, keepdim=True),
    "norm": lambda x: x / torch.norm(input=x, dim=-1, keepdim=True),
    "sqrt": lambda x: x / torch.sqrt(input=x.square().sum(-1, keepdim=True)),
    "attention": lambda x: F.scaled_dot_product_attention(query=x[None], key=x[None], value=x[None], scale=0.5),
    "cat": lambda x: torch.cat(tensors=[x, A], dim=0),
    "stack": lambda x: torch.stack(tensors=[x, A], dim=0),
    "where": lambda x: torch.where(condition=M, input=x, other=A),
    "masked_fill": lambda x: torch.masked_fill(input=x, mask=M, value=2.0),
    "masked_fill, method": lambda x: x.masked_fill(mask=M, value=2.0),
    "lerp": lambda x: torch.lerp(input=x, end=A, weight=0.3),
    "addcmul": lambda x: torch.addcmul(input=x, tensor1=A, tensor2=B, value=2),
    "transpose": lambda x: torch.transpose(input=x, dim0=0, dim1=1),
    "permute": lambda x: torch.permute(input=x, dims=(1, 0)),
    "index_select": lambda x: torch.index_select(input=x, dim=0, index=torch.tensor([2, 0])),
    "gather": lambda x: torch.gather(input=x, dim=0, index=torch.tensor([[2, 0, 1]])),
    "dropout": lambda x: torch.dropout(x, p=0.5, train=False),
    "glu": lambda x: F.glu(input=x.repeat(1, 2), dim=-1),
    "solve": lambda x: torch.linalg.solve_triangular(A.triu() + 3 * torch.eye(3), x, upper=True),
    "aten": lambda x: torch.ops.aten.mul(x, A),
    "aten overload": lambda x: torch.ops.aten.add.Tensor(x, A),
}


@pytest.mark.parametrize("rules", ["gi", "ah+ln", "exact", "attnlrp"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_in_any_spelling_keeps_its_value(name: str, rules: str) -> None:
    x = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    with conserva.rules(rules):
        out = CALLS[name](x)
    torch.testing.assert_close(out, CALLS[name](x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_on_constants_is_left_alone(name: str) -> None:
    x = torch.randn(3, 3, dtype=torch.float64)
    with conserva.rules("exact") as context:
        out = CALLS[name](x)
    assert torch.equal(out, CALLS[name](x))
    assert context.coverage.count("activation") == 0


SQUARES = {
    "pow": lambda x: x.pow(2),
    "named": lambda x: torch.pow(input=x, exponent=2),
    "square": torch.square,
    "product": lambda x: x * x,
}


@pytest.mark.parametrize("name", SQUARES)
def test_a_square_is_its_tensor_times_a_constant_and_a_gate(name: str) -> None:
    x = torch.tensor([-2.0, 0.0, 3.0], dtype=torch.float64, requires_grad=True)
    up = torch.tensor([1.0, 5.0, -4.0], dtype=torch.float64, requires_grad=True)
    with conserva.rules("exact", product="freeze-gate"):
        square = SQUARES[name](x)
        product = square * up
    assert torch.equal(square, x * x)
    assert torch.equal(torch.autograd.grad(square.sum(), x, retain_graph=True)[0], x)
    to_up, to_x = torch.autograd.grad(product.sum(), (up, x), allow_unused=True)
    assert torch.equal(to_up, x * x)
    assert to_x is None


class Alone(torch.nn.Module):
    """A call after one attention."""

    def __init__(self, call) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        x = x[0]
        return self.call(x + F.scaled_dot_product_attention(x[None], x[None], x[None])[0]).sum().reshape(1, 1)


# A bound or a divisor that is reached on its own is a constant: nothing is left to split, or it is lost in the gap.
SPLITTING = [name for name in CALLS if name not in ("clamp", "clamp by tensors", "div by live", "root")]


@pytest.mark.parametrize("name", SPLITTING)
def test_books_close_on_a_call_in_any_spelling(name: str) -> None:
    torch.manual_seed(3)
    x = torch.randn(1, 3, 3, dtype=torch.float64)
    result = conserva.relevance(Alone(CALLS[name]), x, 0, rules="exact")
    assert result.ledger.gap.abs().max() < 1e-9 * max(1.0, float(result.output.abs().max()))


def test_every_reader_is_reached_by_the_name_of_a_torch_call() -> None:
    """A reader under a name that torch does not have would never be called."""
    places = (torch, Tensor, F, torch.special, torch.linalg, torch._C._nn)
    named = {getattr(getattr(place, name, None), "__name__", "") for place in places for name in dir(place)}
    assert sorted(set(READERS) - named) == []


def test_an_activation_whose_source_changed_in_place_since() -> None:
    """The result depends on `y` by no way: what the gate came from was changed after it was made."""
    x, y = torch.randn(4).requires_grad_(), torch.randn(4).requires_grad_()
    with conserva.rules("exact"):
        h = x.clone()
        gate = torch.sigmoid(h)
        h += y
        out = gate * 2
    of_x, of_y = torch.autograd.grad(out.sum(), (x, y), allow_unused=True)
    assert of_y is None or (of_y == 0).all()
    assert (of_x != 0).all()
