"""`chefer` and `partial-lrp` against slow replicas: the rules of Chefer et al. (CVPR 2021) as loops, in float64."""

import functools
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2ForSequenceClassification, ViTConfig, ViTForImageClassification

import conserva
import tiny
from conserva.attribution import find
from conserva.attribution.carried import Carrier
from conserva.engine.sources import Sources

EXACT = {"rtol": 1e-9, "atol": 1e-9}


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def carried(function, *inputs: Tensor, relevance: Tensor, samples: int = 1) -> list[Tensor]:
    """The relevance that reaches the inputs of a function if `relevance` reaches its output."""
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    with Carrier(Sources({}, {}, False, ()), samples, set()):
        output = function(*inputs)
    torch.testing.assert_close(output, function(*inputs), rtol=1e-13, atol=1e-13)  # the forward pass stays as it is
    return list(torch.autograd.grad(output, inputs, relevance))


# The rules, as they are printed


def over(a: float, b: float) -> float:
    """A division, stable near 0 on either side of it, and 0 at it."""
    return 0.0 if b == 0 else a / (b + math.copysign(1e-9, b))


def positive_rule(x: Tensor, w: Tensor, relevance: Tensor) -> Tensor:
    """R_j = sum_i (x_j w_ij)+ / sum_k (x_k w_ik)+ R_i, for each row of x: a linear layer, whatever its bias."""
    weights = w.tolist()
    rows = []
    for values, arriving in zip(x.tolist(), relevance.tolist(), strict=True):
        row = [0.0] * len(values)
        for i, r in enumerate(arriving):
            products = [max(0.0, value * weight) for value, weight in zip(values, weights[i], strict=True)]
            share = over(r, sum(products))
            row = [so_far + product * share for so_far, product in zip(row, products, strict=True)]
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def product_rule(a: Tensor, b: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """z = a b: each of both gets x dz/dx R / z, and half of that."""
    x, y, arriving = a.tolist(), b.tolist(), relevance.tolist()
    of_a, of_b = torch.zeros_like(a).tolist(), torch.zeros_like(b).tolist()
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            products = [x[i][k] * y[k][j] for k in range(a.shape[1])]
            share = over(arriving[i][j], sum(products))
            for k, product in enumerate(products):
                of_a[i][k] += product * share / 2
                of_b[k][j] += product * share / 2
    return torch.tensor(of_a, dtype=torch.float64), torch.tensor(of_b, dtype=torch.float64)


def sum_rule(a: Tensor, b: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """a R / (a + b), scaled to the sum |sum a'| / (|sum a'| + |sum b'|) sum R; the same for b. All of one sample."""
    flat = [t.flatten().tolist() for t in (a, b, relevance)]
    parts = [[x * over(r, p + q) for x, p, q, r in zip(own, *flat, strict=True)] for own in flat[:2]]
    sums = [sum(part) for part in parts]
    whole = abs(sums[0]) + abs(sums[1])
    wanted = [over(abs(one), whole) * sum(flat[2]) for one in sums]
    scaled = [[x * over(to, one) for x in part] for part, to, one in zip(parts, wanted, sums, strict=True)]
    return tuple(torch.tensor(part, dtype=torch.float64).reshape(a.shape) for part in scaled)  # type: ignore[return-value]


# Each call against its rule

W, B = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), torch.ones(4)

LINEAR = {
    "linear": lambda x: F.linear(x, W, B.to(x)),
    "addmm": lambda x: torch.addmm(B.to(x), x, W.T),
    "x @ w": lambda x: x @ W.T + B,
    "w @ x": lambda x: W @ x.transpose(0, 1),
    "einsum": lambda x: torch.einsum("ti,oi->to", x, W),
    "conv1d": lambda x: F.conv1d(x.T[None], W.reshape(4, 2, 3).repeat(1, 3, 1), B.to(x), stride=2, padding=1),
    "conv2d": lambda x: F.conv2d(x.reshape(-1, 1, 2, 3), W.reshape(4, 1, 2, 3), B.to(x), stride=(2, 3)),
    "mean over places": lambda x: x.mean(0),
    "sum over places": lambda x: (x * torch.ones(5, 1).to(x)).sum(0),
}


@pytest.mark.parametrize("call", LINEAR)
def test_positive_rule_of_linear_calls(call: str) -> None:
    x = normal(5, 6)
    matrix = torch.autograd.functional.jacobian(LINEAR[call], x)  # a linear call is its matrix, and a bias
    relevance = normal(*matrix.shape[:-2])
    (ours,) = carried(LINEAR[call], x, relevance=relevance)
    theirs = positive_rule(x.reshape(1, -1), matrix.reshape(-1, x.numel()), relevance.reshape(1, -1))
    torch.testing.assert_close(ours, theirs.reshape(5, 6), **EXACT)


def test_positive_rule_conserves_unless_an_output_has_no_positive_product() -> None:
    x, w, b, relevance = normal(3, 6), normal(4, 6), normal(4), normal(3, 4)
    assert ((x[:, None] * w).amax(-1) > 0).all()
    (ours,) = carried(lambda x: F.linear(x, w, b), x, relevance=relevance)
    torch.testing.assert_close(ours.sum(1), relevance.sum(1), rtol=1e-7, atol=1e-7)  # but for the stabiliser
    w[2] = -x[1]  # at the second place, the third output has negative products alone
    (ours,) = carried(lambda x: F.linear(x, w, b), x, relevance=relevance)
    torch.testing.assert_close(ours[1].sum(), relevance[1].sum() - relevance[1, 2], rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(ours, positive_rule(x, w, relevance), **EXACT)


SUMS = {
    "a + b": (lambda a, b: a + b, 1),
    "in place": (lambda a, b: a.clone().add_(b), 1),
    "a - b": (lambda a, b: a - b, -1),
    "alpha": (lambda a, b: torch.add(a, b, alpha=-3), -3),
}


@pytest.mark.parametrize("call", SUMS)
def test_sum_rule_keeps_samples_apart(call: str) -> None:
    (function, factor), (a, b, relevance) = SUMS[call], normal(3, 2, 4, 3)
    a[:, 0, 0], b[:, 0, 0] = 3, -3 / factor  # where the sum is 0, there is nothing to share
    ours = carried(function, a, b, relevance=relevance, samples=2)
    alone = [sum_rule(a[n], factor * b[n], relevance[n]) for n in range(2)]
    coupled = sum_rule(a, factor * b, relevance)  # what the released code does
    for mine, theirs, wrong in zip(ours, zip(*alone, strict=True), coupled, strict=True):
        torch.testing.assert_close(mine, torch.stack(theirs), **EXACT)
        assert (mine - wrong).abs().max() > 1e-3


PRODUCTS = {
    "a @ b": lambda a, b: a @ b,
    "bmm": lambda a, b: torch.bmm(a[None], b[None])[0],
    "einsum": lambda a, b: torch.einsum("ik,kj->ij", a, b),
    "einsum, turned": lambda a, b: torch.einsum("ki,kj->ij", a.T, b),
}


@pytest.mark.parametrize("call", PRODUCTS)
def test_product_rule_gives_each_factor_half(call: str) -> None:
    a, b, relevance = normal(4, 3), normal(3, 5), normal(4, 5)
    ours = carried(PRODUCTS[call], a, b, relevance=relevance)
    for mine, theirs in zip(ours, product_rule(a, b, relevance), strict=True):
        torch.testing.assert_close(mine, theirs, **EXACT)
        torch.testing.assert_close(mine.sum(), relevance.sum() / 2, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("call", [lambda a, b: F.silu(a) * b, lambda a, b: F.glu(torch.cat([b, a], -1))])
def test_gated_product_gives_each_factor_half(call) -> None:
    a, b, relevance = normal(2, 6), normal(2, 6), normal(2, 6)
    for ours in carried(call, a, b, relevance=relevance):  # x dz/dx R / z is R, but for the stabiliser
        torch.testing.assert_close(ours, relevance / 2, rtol=1e-7, atol=1e-7)


def layer_norm(x: Tensor, root, epsilon: float = 1e-5) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * root(centred.pow(2).mean(-1, keepdim=True) + epsilon)


WEIGHT, BIAS = torch.linspace(-1, 2, 6, dtype=torch.float64), torch.linspace(2, -1, 6, dtype=torch.float64)

IDENTITY = {
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax by hand": lambda x: torch.exp(x) / torch.exp(x).sum(-1, keepdim=True),
    "layer norm": lambda x: F.layer_norm(x, (6,), WEIGHT, BIAS),
    "layer norm, rsqrt": lambda x: layer_norm(x, torch.rsqrt) * WEIGHT + BIAS,
    "layer norm, sqrt": lambda x: layer_norm(x, lambda v: 1 / torch.sqrt(v)),
    "layer norm, power": lambda x: layer_norm(x, lambda v: v**-0.5),
    "rms norm": lambda x: F.rms_norm(x, (6,), WEIGHT),
    "rms norm, rsqrt": lambda x: WEIGHT * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
    "rms norm, length": lambda x: x / (x.norm(2, dim=-1, keepdim=True) * 6**-0.5),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "gelu": F.gelu,
    "gelu, tanh": lambda x: 0.5 * x * (1.0 + torch.tanh(0.79788456 * (x + 0.044715 * torch.pow(x, 3.0)))),
    "gelu, erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "gelu, sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "silu, exp": lambda x: x / (1 + torch.exp(-x)),
    "tanh": torch.tanh,
    "relu squared": lambda x: F.relu(x) ** 2,
    "constant factors": lambda x: -3 * x / 7 * WEIGHT,
    "constants added": lambda x: 1 - (x + BIAS) + 3,
    "mask added": lambda x: (x + torch.tensor([0, 0, -math.inf, 0, 0, 0])).softmax(-1),
}


@pytest.mark.parametrize("call", IDENTITY)
def test_relevance_passes_unchanged(call: str) -> None:
    x, relevance = normal(2, 6), normal(2, 6)
    (ours,) = carried(IDENTITY[call], x, relevance=relevance, samples=2)
    torch.testing.assert_close(ours, relevance, **EXACT)


def test_relevance_moves_with_the_values() -> None:
    x, y, relevance = normal(2, 5, 3), normal(2, 2, 3), normal(2, 3)
    expected = torch.zeros_like(x)
    expected[:, 1] = relevance
    for pick in (lambda x: x[:, 1], lambda x: x.index_select(1, torch.tensor([1]))[:, 0], lambda x: x.select(1, 1)):
        torch.testing.assert_close(carried(pick, x, relevance=relevance, samples=2)[0], expected, rtol=0, atol=0)
    relevance = normal(2, 7, 3)
    parts = carried(lambda x, y: torch.cat([x, y], 1), x, y, relevance=relevance, samples=2)
    assert torch.equal(torch.cat(parts, 1), relevance)
    relevance = normal(2, 4, 2, 3)  # a tensor that is used several times gets the sum
    (of_y,) = carried(lambda y: y[:, None].expand(2, 4, 2, 3), y, relevance=relevance, samples=2)
    torch.testing.assert_close(of_y, relevance.sum(1), **EXACT)


# The methods, on a BERT written out by hand


def run_bert(model: nn.Module, ids: Tensor, target: int) -> SimpleNamespace:
    """A forward pass from the weights alone, one sample, one head after the other; with the gradients of the maps."""
    config, w = model.config, {name: value.detach() for name, value in model.state_dict().items()}
    width = config.hidden_size // config.num_attention_heads

    def dense(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name: str, x: Tensor) -> Tensor:
        return layer_norm(x, torch.rsqrt, config.layer_norm_eps) * w[f"{name}.weight"] + w[f"{name}.bias"]

    e = "bert.embeddings."
    x = w[e + "word_embeddings.weight"][ids] + w[e + "position_embeddings.weight"][: len(ids)]
    x = norm(e + "LayerNorm", x + w[e + "token_type_embeddings.weight"][0]).requires_grad_()
    layers = []
    for number in range(config.num_hidden_layers):
        at = f"bert.encoder.layer.{number}."
        one = SimpleNamespace(at=at, x=x)
        split = [dense(f"{at}attention.self.{name}", x).split(width, -1) for name in ("query", "key", "value")]
        one.heads = list(zip(*split, strict=True))
        one.maps = [torch.softmax(q @ k.T / math.sqrt(width), -1) for q, k, _ in one.heads]
        one.context = torch.cat([p @ v for p, (_, _, v) in zip(one.maps, one.heads, strict=True)], -1)
        one.mixed = dense(at + "attention.output.dense", one.context)
        one.between = norm(at + "attention.output.LayerNorm", one.mixed + x)
        u = dense(at + "intermediate.dense", one.between)
        one.up = 0.5 * u * (1 + torch.erf(u / math.sqrt(2)))
        one.down = dense(at + "output.dense", one.up)
        x = norm(at + "output.LayerNorm", one.down + one.between)
        layers.append(one)
    pooled = torch.tanh(dense("bert.pooler.dense", x[:1]))
    logits = dense("classifier", pooled)[0]
    gradients = iter(torch.autograd.grad(logits[target], [p for one in layers for p in one.maps]))
    for one in layers:
        one.gradients = torch.stack([next(gradients) for _ in one.maps])
    return SimpleNamespace(w=w, layers=layers, last=x, pooled=pooled, logits=logits.detach())


def carry_bert(run: SimpleNamespace, target: int) -> list[Tensor]:
    """The relevance of each layer's maps, heads x places x places, from 1 at the target."""
    start = torch.eye(len(run.logits), dtype=torch.float64)[target][None]
    r = torch.zeros_like(run.last)
    r_pooled = positive_rule(run.pooled, run.w["classifier.weight"], start)
    r[:1] = positive_rule(run.last[:1], run.w["bert.pooler.dense.weight"], r_pooled)  # the tanh passes it on
    found = []
    for one in reversed(run.layers):
        r_down, r_skip = sum_rule(one.down, one.between, r)
        r_up = positive_rule(one.up, run.w[one.at + "output.dense.weight"], r_down)
        r = positive_rule(one.between, run.w[one.at + "intermediate.dense.weight"], r_up) + r_skip
        r_mixed, r = sum_rule(one.mixed, one.x, r)
        r_context = positive_rule(one.context, run.w[one.at + "attention.output.dense.weight"], r_mixed)
        r_maps, r_heads = [], []
        parts = r_context.split(one.heads[0][0].shape[1], -1)
        for p, (q, k, v), r_head in zip(one.maps, one.heads, parts, strict=True):
            r_p, r_v = product_rule(p, v, r_head)
            r_q, r_k = product_rule(q, k.T, r_p)  # softmax and scale pass it on
            r_maps.append(r_p)
            r_heads.append((r_q, r_k.T, r_v))
        for name, of_heads in zip(("query", "key", "value"), zip(*r_heads, strict=True), strict=True):
            r = r + positive_rule(one.x, run.w[f"{one.at}attention.self.{name}.weight"], torch.cat(of_heads, -1))
        found.insert(0, torch.stack(r_maps))
    return found


@functools.cache
def bert_run(length: int, seed: int, target: int) -> tuple[nn.Module, dict, Tensor, list[Tensor], list[Tensor]]:
    model, inputs = tiny.bert().double(), tiny.tokens(1, length, seed)
    run = run_bert(model, inputs["input_ids"][0], target)
    return model, inputs, run.logits, carry_bert(run, target), [one.gradients for one in run.layers]


def rolled_out(gradients: list[Tensor], relevance: list[Tensor], normalise: bool, start: int) -> Tensor:
    """The row of place 0 in (I + A_B) ... (I + A_start), its own entry 0; A = mean over heads (gradient * R)+."""
    product = torch.eye(gradients[0].shape[-1], dtype=torch.float64)
    for gradient, r in list(zip(gradients, relevance, strict=True))[start:]:
        layer = sum((g * one).clamp(min=0) for g, one in zip(gradient, r, strict=True)) / len(r)
        layer = layer + torch.eye(len(layer), dtype=torch.float64)
        layer = layer / layer.sum(-1, keepdim=True) if normalise else layer
        product = layer @ product
    return torch.cat([product.new_zeros(1), product[0, 1:]])


OPTIONS = {"chefer": (False, 0), "chefer:normalise=yes": (True, 0), "chefer:start=1": (False, 1)}


@pytest.mark.parametrize(("length", "seed", "target"), [(7, 0, 2), (4, 1, 0), (2, 2, 1)])
@pytest.mark.parametrize("method", [*OPTIONS, "partial-lrp"])
def test_methods_equal_a_bert_written_out(method: str, length: int, seed: int, target: int) -> None:
    model, inputs, logits, relevance, gradients = bert_run(length, seed, target)
    torch.testing.assert_close(model(**inputs).logits[0].detach(), logits, rtol=1e-12, atol=1e-12)
    ours = find(method).apply(model, inputs, target).scores["input_ids"][0]
    if method == "partial-lrp":
        theirs = (relevance[-1].clamp(min=0).sum(0) / len(relevance[-1]))[0]
        theirs[0] = 0
    else:
        theirs = rolled_out(gradients, relevance, *OPTIONS[method])
    assert theirs.abs().max() > 0
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8 * theirs.abs().max().item())


# Batches, pads, masks, ways to attend


def gpt2() -> nn.Module:
    settings = {"vocab_size": 99, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "num_labels": 3}
    return tiny.shake(GPT2ForSequenceClassification(GPT2Config(**settings, pad_token_id=0)))


def vit() -> nn.Module:
    settings = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return tiny.shake(ViTForImageClassification(ViTConfig(**settings, image_size=8, patch_size=4, num_labels=3)))


class Masked(nn.Module):
    """Attention by hand: a mask of -inf is added to its scores. What is made of the words below it can be chosen."""

    def __init__(self, below=lambda x: x) -> None:
        super().__init__()
        self.below, self.words, self.qkv, self.out = below, nn.Embedding(50, 8), nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, ids: Tensor, padding: Tensor) -> Tensor:
        x = self.below(self.words(ids))
        for _ in range(2):
            q, k, v = self.qkv(x).chunk(3, -1)
            mask = torch.zeros(padding.shape).masked_fill(padding, -math.inf)[:, None]
            x = x + torch.softmax(q @ k.transpose(1, 2) / math.sqrt(8) + mask, -1) @ v
        return self.out(x[:, 0])


LENGTHS, TARGETS = (4, 7, 3), [2, 0, 1]
MODELS = {
    "bert": tiny.bert,
    "gpt2": gpt2,
    "vit": vit,
    "encoder": lambda: tiny.shake(tiny.Classifier()),
    "by hand": lambda: tiny.shake(Masked()),
}


def inputs_of(name: str, samples: slice = slice(0, 3), length: int = 7) -> dict[str, Tensor] | tuple[Tensor, ...]:
    """Padded texts, or images, as the model takes them: samples of the three, cut to a length."""
    real = (torch.arange(7) < torch.tensor(LENGTHS)[:, None])[samples, :length]
    ids = torch.randint(5, 50, (3, 7), generator=torch.Generator().manual_seed(3))[samples, :length] * real
    if name == "vit":
        return {"pixel_values": torch.linspace(-1, 2, 576, dtype=torch.float64).sin().reshape(3, 3, 8, 8)[samples]}
    return {"input_ids": ids, "attention_mask": real.long()} if name in ("bert", "gpt2") else (ids, ~real)


def scores_of(method: str, model: nn.Module, inputs, target) -> Tensor:
    (scores,) = find(method).apply(model, inputs, target).scores.values()
    assert torch.isfinite(scores).all()
    assert (scores.amax(1) > 0).all()
    return scores


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ["chefer", "partial-lrp"])
def test_batch_equals_its_samples_alone_and_pads_get_nothing(name: str, method: str) -> None:
    model = MODELS[name]().double()
    scores = scores_of(method, model, inputs_of(name), TARGETS)
    for i, length in enumerate(LENGTHS if name != "vit" else [5, 5, 5]):  # the class token and four patches
        (alone,) = scores_of(method, model, inputs_of(name, slice(i, i + 1), length), TARGETS[i])
        torch.testing.assert_close(scores[i, :length], alone, rtol=0, atol=1e-8 * alone.max().item())
        assert (scores[i, length:] == 0).all()


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
@pytest.mark.parametrize("method", ["chefer", "partial-lrp"])
def test_eager_equals_sdpa(name: str, method: str) -> None:
    model = MODELS[name]().double()
    found = []
    for how in ("eager", "sdpa"):
        model.set_attn_implementation(how)
        found.append(scores_of(method, model, inputs_of(name), TARGETS))
    near = 1e-5 if name == "vit" else 1e-8  # its eager attention takes the softmax in float32
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=near * found[1].max().item())


@pytest.mark.parametrize(("name", "call"), [("cumsum", lambda x: x.cumsum(1)), ("no rule for atan", torch.atan)])
def test_an_operation_without_a_rule_is_refused_by_name(name: str, call) -> None:
    with pytest.raises(conserva.Error, match=name):
        find("chefer").apply(tiny.shake(Masked(call)), inputs_of("by hand"), 0)
