"""`attnlrp` (Achtibat et al. 2024) against a Llama written out by hand: sums and quotients of relevance, in float64.

Also `attnlrp+res`, with LRP-gamma at residual sums (Berend et al. 2026), and, without epsilon, Dual Path Attribution
(arXiv 2603.19742), which is then the same.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import conserva
import tiny
from conserva.engine.rules import RULE_SETS, RuleSet, rule_set


class Norm(nn.Module):
    """Llama's norm in the precision of its input: the released one works in float32."""

    def __init__(self, released: nn.Module) -> None:
        super().__init__()
        self.weight, self.epsilon = released.weight, released.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon))


def llama(released: bool = False, **changes: object) -> nn.Module:
    model = tiny.llama(**changes).double()
    for owner in [] if released else [model.model, *model.model.layers]:
        for name, child in list(owner.named_children()):
            if hasattr(child, "variance_epsilon"):
                setattr(owner, name, Norm(child))
    return model


# The rules: `x` and relevance are one row for each place


def epsilon_rule(x: Tensor, w: Tensor, relevance: Tensor, epsilon: float) -> Tensor:
    """R_j = sum_i x_j w_ij / (z_i + epsilon sign z_i) R_i, with z_i = sum_j x_j w_ij."""
    rows = []
    for values, arriving in zip(x, relevance, strict=True):
        products = values * w  # outputs x inputs
        z = products.sum(1)
        rows.append(
            sum(
                product / divisor * r
                for product, divisor, r in zip(products, z + epsilon * z.sign(), arriving, strict=True)
            )
        )
    return torch.stack(rows)


def sum_rule(a: Tensor, b: Tensor, relevance: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """For z = a + b: R_a = a' / (a' + b') R, where a' is (1 + gamma) a if a has the sign of z and b has not."""
    z, of_a, of_b = a + b, torch.zeros_like(a), torch.zeros_like(b)
    for i in range(z.shape[0]):
        for j in range(z.shape[1]):
            x, y = a[i, j], b[i, j]
            if x * y < 0:
                x, y = ((1 + gamma) * x, y) if x * z[i, j] > 0 else (x, (1 + gamma) * y)
            of_a[i, j], of_b[i, j] = x / (x + y) * relevance[i, j], y / (x + y) * relevance[i, j]
    return of_a, of_b


def uniform_rule(a: Tensor, b: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """z_ij = sum_k a_ik b_kj: each product's share a_ik b_kj / z_ij R_ij goes to both of its factors, half each."""
    products = a[:, :, None] * b[None]  # i, k, j
    halves = products / products.sum(1, keepdim=True) * relevance[:, None] / 2
    return halves.sum(2), halves.sum(0)


def softmax_rule(x: Tensor, s: Tensor, relevance: Tensor, temperature: float) -> Tensor:
    """R_i = x_i t_i (R_i / s_i - sum_j t_j R_j / s_j) for one row, with t = softmax(x / temperature); 1: t is s."""
    t, grad = torch.softmax(x / temperature, -1), relevance / s
    return x * t * (grad - (t * grad).sum())


def rotation(length: int, width: int, base: float) -> Tensor:
    """The matrices that turn the queries and keys of each place, places x width x width."""
    matrices = torch.zeros(length, width, width, dtype=torch.float64)
    half = width // 2
    for place in range(length):
        for d in range(half):
            # Llama has the angles in float32
            angle = torch.tensor(float(place)) * (1.0 / (base ** (torch.tensor(2.0 * d) / width)))
            cos, sin = angle.cos().item(), angle.sin().item()
            matrices[place, d, d] = matrices[place, d + half, d + half] = cos
            matrices[place, d, d + half], matrices[place, d + half, d] = -sin, sin
    return matrices


def linear_share(x: Tensor, matrices: Tensor, relevance: Tensor) -> Tensor:
    """R_j = sum_i m_ij x_j / z_i R_i: a linear map without weights to be learnt."""
    products = matrices * x[:, None, :]
    return (products / products.sum(2, keepdim=True) * relevance[:, :, None]).sum(1)


# The model


def run(model: nn.Module, ids: Tensor) -> SimpleNamespace:
    """A forward pass of one sample from the weights alone, everything kept."""
    config, w = model.config, {name: value.detach() for name, value in model.state_dict().items()}
    width = config.hidden_size // config.num_attention_heads
    group = config.num_attention_heads // config.num_key_value_heads
    turns = rotation(len(ids), width, config.rope_parameters["rope_theta"])
    visible = torch.ones(len(ids), len(ids)).tril().bool()

    def norm(name: str, x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + config.rms_norm_eps) * w[name + ".weight"]

    x = w["model.embed_tokens.weight"][ids]
    layers = []
    for number in range(config.num_hidden_layers):
        at = f"model.layers.{number}."
        one = SimpleNamespace(x=x, w={name.removeprefix(at): value for name, value in w.items() if name.startswith(at)})
        one.normed = norm(at + "input_layernorm", x)
        q, k, v = (one.normed @ one.w[f"self_attn.{name}_proj.weight"].T for name in "qkv")
        one.heads = []
        for h in range(config.num_attention_heads):
            own, shared = slice(h * width, (h + 1) * width), slice(h // group * width, (h // group + 1) * width)
            head = SimpleNamespace(own=own, shared=shared, q=q[:, own], k=k[:, shared], v=v[:, shared])
            head.turned_q, head.turned_k = (torch.einsum("tij,tj->ti", turns, t) for t in (head.q, head.k))
            head.scores = head.turned_q @ head.turned_k.T / math.sqrt(width)
            head.p = torch.softmax(head.scores.masked_fill(~visible, -math.inf), -1)
            one.heads.append(head)
        one.context = torch.cat([head.p @ head.v for head in one.heads], -1)
        one.mixed = one.context @ one.w["self_attn.o_proj.weight"].T
        one.between = x + one.mixed
        one.normed_between = norm(at + "post_attention_layernorm", one.between)
        one.gate, one.up = (one.normed_between @ one.w[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        one.gated = one.gate / (1 + torch.exp(-one.gate)) * one.up
        one.down = one.gated @ one.w["mlp.down_proj.weight"].T
        x = one.between + one.down
        layers.append(one)
    normed = norm("model.norm", x)
    return SimpleNamespace(
        w=w, layers=layers, turns=turns, last=x, normed=normed, logits=normed[-1] @ w["score.weight"].T
    )


def attention_rules(
    one: SimpleNamespace, turns: Tensor, relevance: Tensor, epsilon: float, temperature: float
) -> Tensor:
    """The relevance of the normed input, from that of the heads' results."""
    r_q, r_k, r_v = (
        torch.zeros(len(relevance), len(one.w[f"self_attn.{name}_proj.weight"])).double() for name in "qkv"
    )
    for head in one.heads:
        arriving = relevance[:, head.own]
        r_turned_q, r_turned_k = torch.zeros_like(head.q), torch.zeros_like(head.k)
        for i in range(len(relevance)):  # place i sees the places up to i
            seen = slice(0, i + 1)
            r_p, of_v = uniform_rule(head.p[i : i + 1, seen], head.v[seen], arriving[i : i + 1])
            r_scores = softmax_rule(head.scores[i, seen], head.p[i, seen], r_p[0], temperature)[None]
            of_q, of_k = uniform_rule(head.turned_q[i : i + 1], head.turned_k[seen].T, r_scores)
            r_v[seen, head.shared] += of_v
            r_turned_q[i] += of_q[0]
            r_turned_k[seen] += of_k.T
        r_q[:, head.own] += linear_share(head.q, turns, r_turned_q)
        r_k[:, head.shared] += linear_share(head.k, turns, r_turned_k)
    parts = zip("qkv", (r_q, r_k, r_v), strict=True)
    return sum(epsilon_rule(one.normed, one.w[f"self_attn.{name}_proj.weight"], r, epsilon) for name, r in parts)  # type: ignore[return-value]


def attnlrp(model: nn.Module, ids: Tensor, target: int, rules: RuleSet) -> tuple[Tensor, Tensor]:
    """The logits, and the relevance of each token for one of them."""
    epsilon = rules.epsilon if rules.linear.name == "epsilon" else 0.0
    gamma = rules.residual_gamma if rules.residual.name == "gamma" else 0.0
    done = run(model, ids)
    r = torch.zeros_like(done.last)
    arriving = done.logits[target].reshape(1, 1)
    r[-1:] = epsilon_rule(done.normed[-1:], done.w["score.weight"][target][None], arriving, epsilon)
    for one in reversed(done.layers):  # norms pass relevance on
        r_down, r_skip = sum_rule(one.down, one.between, r, gamma)
        r_gated = epsilon_rule(one.gated, one.w["mlp.down_proj.weight"], r_down, epsilon)
        # x act'(x) / act(x) of the relevance goes through a silu that is differentiated, all of it by the rule `ratio`
        slope = 1 + one.gate * torch.sigmoid(-one.gate) if rules.activation.differentiates else 1.0
        of_gate = epsilon_rule(one.normed_between, one.w["mlp.gate_proj.weight"], slope * r_gated / 2, epsilon)
        of_up = epsilon_rule(one.normed_between, one.w["mlp.up_proj.weight"], r_gated / 2, epsilon)
        r_mixed, r_skip = sum_rule(one.mixed, one.x, r_skip + of_gate + of_up, gamma)
        r_context = epsilon_rule(one.context, one.w["self_attn.o_proj.weight"], r_mixed, epsilon)
        r = r_skip + attention_rules(one, done.turns, r_context, epsilon, rules.attention.temperature)
    return done.logits, r.sum(-1)


def assert_equal(
    model: nn.Module, ids: Tensor, target: int, ours: Tensor, near: float, rules: RuleSet = RULE_SETS["attnlrp"]
) -> None:
    logits, theirs = attnlrp(model, ids, target, rules)
    torch.testing.assert_close(model(ids[None]).logits[0].detach(), logits, rtol=0, atol=near)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=near * theirs.abs().max().item())


SHAPES = {"grouped": {}, "one for all": {"num_key_value_heads": 1}, "each its own": {"num_key_value_heads": 4}}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("length", "seed", "target"), [(7, 0, 1), (5, 1, 0), (2, 2, 1)])
def test_attnlrp_equals_a_llama_written_out(shape: str, length: int, seed: int, target: int) -> None:
    model, inputs = llama(**SHAPES[shape]), tiny.tokens(1, length, seed)
    ours = conserva.relevance(model, inputs, target, rules="attnlrp").scores()
    assert_equal(model, inputs["input_ids"][0], target, ours[0], 1e-8)


@pytest.mark.parametrize("how", ["eager", "sdpa"])
def test_attnlrp_of_the_released_norms_is_as_near_as_float32(how: str) -> None:
    model, inputs = llama(released=True), tiny.tokens(1)
    model.set_attn_implementation(how)
    ours = conserva.relevance(model, inputs, 1, rules="attnlrp").scores()
    assert_equal(model, inputs["input_ids"][0], 1, ours[0], 1e-4)


def test_attnlrp_of_a_padded_batch_equals_each_sample_written_out() -> None:
    model, inputs, lengths, targets = llama(), tiny.tokens(3, 6, seed=4), (6, 3, 4), [1, 0, 1]
    for i, length in enumerate(lengths):
        inputs["input_ids"][i, length:] = inputs["attention_mask"][i, length:] = 0
    ours = conserva.relevance(model, inputs, targets, rules="attnlrp").scores()
    for i, length in enumerate(lengths):
        assert_equal(model, inputs["input_ids"][i, :length], targets[i], ours[i, :length], 1e-8)
        assert (ours[i, length:] == 0).all()


@pytest.mark.parametrize("strength", [1.0, 0.25, 30.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_gamma_at_residual_sums_equals_a_llama_written_out(shape: str, strength: float) -> None:
    model, inputs = llama(**SHAPES[shape]), tiny.tokens(1, 6, 5)
    rules = rule_set("attnlrp", residual_gamma=strength)
    ours = conserva.relevance(model, inputs, 1, rules=rules)
    assert sum(met.times for met in ours.coverage if met.kind == "residual") == 2 * model.config.num_hidden_layers
    assert_equal(model, inputs["input_ids"][0], 1, ours.scores()[0], 1e-9, rules)
    if strength == 1:
        assert torch.equal(conserva.relevance(model, inputs, 1, rules="attnlrp+res").scores(), ours.scores())


def dual_path(model: nn.Module, ids: Tensor, target: int) -> Tensor:
    """Dual Path Attribution: the gradient of a model in which each factor of a product has half of it.

    Probabilities and values get half each, queries and keys half of that of the scores, gate and up half each; the silu
    is its argument times a constant sigmoid, and the scale of a norm is a constant.
    """
    config, w = model.config, {name: value.detach() for name, value in model.state_dict().items()}
    width = config.hidden_size // config.num_attention_heads
    group = config.num_attention_heads // config.num_key_value_heads
    turns = rotation(len(ids), width, config.rope_parameters["rope_theta"])
    hidden = torch.ones(len(ids), len(ids)).triu(1).bool()

    def half(a: Tensor, b: Tensor, product) -> Tensor:
        return (product(a, b.detach()) + product(a.detach(), b)) / 2

    def norm(name: str, x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + config.rms_norm_eps).detach() * w[name + ".weight"]

    start = w["model.embed_tokens.weight"][ids].requires_grad_()
    x = start
    for number in range(config.num_hidden_layers):
        at = f"model.layers.{number}."
        normed = norm(at + "input_layernorm", x)
        q, k, v = (normed @ w[f"{at}self_attn.{name}_proj.weight"].T for name in "qkv")
        heads = []
        for h in range(config.num_attention_heads):
            own, shared = slice(h * width, (h + 1) * width), slice(h // group * width, (h // group + 1) * width)
            turned = [torch.einsum("tij,tj->ti", turns, t) for t in (q[:, own], k[:, shared])]
            scores = half(*turned, lambda a, b: a @ b.T) / math.sqrt(width)
            p = torch.softmax(scores.masked_fill(hidden, -math.inf), -1)
            heads.append(half(p, v[:, shared], torch.matmul))
        x = x + torch.cat(heads, -1) @ w[at + "self_attn.o_proj.weight"].T
        normed = norm(at + "post_attention_layernorm", x)
        gate, up = (normed @ w[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + half(gate * torch.sigmoid(gate).detach(), up, torch.mul) @ w[at + "mlp.down_proj.weight"].T
    logit = norm("model.norm", x)[-1] @ w["score.weight"][target]
    return (start * torch.autograd.grad(logit, start)[0]).sum(-1).detach()


@pytest.mark.parametrize("shape", SHAPES)
def test_attnlrp_without_epsilon_is_dual_path_attribution(shape: str) -> None:
    model, inputs = llama(**SHAPES[shape]), tiny.tokens(1, 6, 3)
    ours = conserva.relevance(model, inputs, 1, rules=rule_set("attnlrp", linear="zero")).scores()[0]
    theirs = dual_path(model, inputs["input_ids"][0], 1)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9 * theirs.abs().max().item())


@pytest.mark.parametrize("how", ["eager", "sdpa"])
@pytest.mark.parametrize("shape", SHAPES)
def test_gim_equals_a_llama_written_out(shape: str, how: str) -> None:
    model, inputs = llama(**SHAPES[shape]), tiny.tokens(1, 6, 7)
    model.set_attn_implementation(how)
    ours = conserva.relevance(model, inputs, 1, rules="gim").scores()
    near = 1e-9 if how == "sdpa" else 1e-6  # the model's own softmax is in float32
    assert_equal(model, inputs["input_ids"][0], 1, ours[0], near, RULE_SETS["gim"])
