"""Models of many kinds, and everything that can be asked about them."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import conserva
from conserva.attribution import methods, options
from conserva.auditing.doctor import examine
from conserva.engine.rules import RULE_SETS
from conserva.explaining.explain import explain
from conserva.tasks.task import Task
from language import causal
from tiny import Classifier, bert, llama, shake, tokens
from tiny_heads import model as with_head
from tiny_heads import tokenizer
from writers import writer

SENTENCE = "a joy from start to end."
TEXTS = [("a joy from start to end.", "positive"), ("Mary is a bore.", "negative"), ("John is a joy.", "positive")]


@dataclass(frozen=True)
class Subject:
    """A model with what it is called with, and the task that it belongs to, if it has one."""

    model: nn.Module
    inputs: Any
    target: Any = 1
    task: Task | None = None
    given: Any = None
    """An input of the task."""
    changing: tuple[str, ...] = ()
    """The attributes that its own forward sets."""


class Keeps(nn.Module):
    """A Transformer with everything that one may find on a module: see `kept`."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 12)
        self.register_buffer("scale", torch.tensor(1 / math.sqrt(12.0)))
        self.register_buffer("memory", torch.zeros(3, 12), persistent=False)
        self.qkv, self.up, self.down = nn.Linear(12, 36), nn.Linear(12, 24), nn.Linear(24, 12)
        self.norm, self.out = nn.LayerNorm(12), nn.Linear(12, 40, bias=False)
        self.out.weight = self.words.weight
        self.last: Tensor | None = None
        self.seen: Tensor | None = None
        self.picked: Tensor | None = None

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        weights = ((q @ k.transpose(-1, -2)) * self.scale).softmax(-1)
        x = x + weights @ v
        u = self.up(x)
        self.last = u * torch.sigmoid(u)
        x = x + self.down(self.last)
        self.seen = x[:1].detach() * 2
        self.memory[:, :] = x.detach()[:1, :3].mean(1)
        self.picked = input_ids[:, :2].clone()
        self.counted = torch.arange(len(x))
        return self.out(x[self.counted, -1])


def kept() -> Keeps:
    """Return a model with tied weights, buffers, hooks, a parametrization, frozen weights and gradients."""
    torch.manual_seed(0)
    model: Any = shake(Keeps())
    parametrizations.orthogonal(model.down)
    model.norm.requires_grad_(False)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad and parameter.dim() > 1 else None
    model.up.register_forward_hook(_look)
    model.up.register_forward_pre_hook(_look)
    model(_ids())
    return model


def _look(*given: Any) -> None:
    return None


def _ids(words: int = 40, length: int = 6) -> Tensor:
    return torch.randint(3, words, (2, length), generator=torch.Generator().manual_seed(0))


def _task(task: Task, given: Any, target: Any = None) -> Subject:
    return Subject(task.model, task.batch([task.encode(given)]), target, task, given)


def _text(**changes: Any) -> Subject:
    labels = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
    model = with_head("bert", "AutoModelForSequenceClassification", **labels, **changes).float()
    return _task(conserva.Text(model, tokenizer()), SENTENCE)


def _image() -> Subject:
    names = {0: "cat", 1: "dog", 2: "bird"}
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, id2label=names)
    torch.manual_seed(0)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    return _task(conserva.Image(shake(transformers.ViTForImageClassification(config))), pixels)


def _vit_alone() -> Subject:
    found = _image()
    assert found.task is not None
    pixels = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return Subject(found.task.network, {"pixel_values": pixels})


def _t5_alone() -> Subject:
    task = writer("t5")
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 1]]), "decoder_input_ids": torch.tensor([[0, 6, 8]])}
    return Subject(task.network, inputs, (2, 7))


SUBJECTS: Mapping[str, Callable[[], Subject]] = {
    "sentiment": lambda: _task(conserva.load(), SENTENCE),
    "bert": lambda: Subject(bert(attn_implementation="eager"), tokens(2)),
    "bert sdpa": lambda: Subject(bert(attn_implementation="sdpa"), tokens(2)),
    "llama": lambda: Subject(llama(attn_implementation="eager"), tokens(2)),
    "llama sdpa": lambda: Subject(llama(attn_implementation="sdpa"), tokens(2)),
    "t5": _t5_alone,
    "vit": _vit_alone,
    "encoder": lambda: Subject(shake(Classifier()), _ids()),
    "keeps": lambda: Subject(kept(), _ids(), changing=("last", "seen", "picked", "counted", "memory")),
    "text": _text,
    "gpt2 task": lambda: _task(causal("gpt2"), "The capital of France is", " Paris"),
    "llama task": lambda: _task(causal("llama"), "The capital of France is", " Paris"),
    "t5 task": lambda: _task(writer("t5"), "the cat sat"),
    "image task": _image,
}
"""Models alone, and models of tasks."""


@cache
def subject(name: str) -> Subject:
    """Return a subject, which is made once."""
    return SUBJECTS[name]()


def _relevance(**how: Any) -> Callable[[Subject], Any]:
    return lambda one: conserva.relevance(one.model, one.inputs, _aim(one), **how)


def _aim(one: Subject) -> Any:
    if one.task is None:
        return one.target
    return [one.task.resolve_target(one.target, one.task.encode(one.given))]


def _several(one: Subject) -> Any:
    return conserva.relevance(one.model, one.inputs, targets=[_aim(one), _aim(one)], rules="exact")


def _in_rules(one: Subject) -> Any:
    with conserva.rules("exact"), torch.no_grad():
        output = one.model(**one.inputs) if isinstance(one.inputs, dict) else one.model(one.inputs)
    found = output if isinstance(output, Tensor) else output[0] if isinstance(output, tuple) else output.logits
    return found.detach()


def _replaying(one: Subject) -> Any:
    with conserva.replaying(one.model) as fast:
        return [fast.relevance(one.inputs, _aim(one), rules="ah+ln") for _ in range(3)]


def _verify(one: Subject) -> Any:
    return conserva.verify(one.model, one.inputs, _aim(one), directions=1)


ABOUT_MODELS: Mapping[str, Callable[[Subject], Any]] = {
    **{f"relevance {rules}": _relevance(rules=rules) for rules in RULE_SETS},
    "relevance at embeddings": _relevance(at="embeddings"),
    "relevance at both": _relevance(at=["inputs", "embeddings"], rules="exact"),
    "relevance at modules": _relevance(at=["inputs", "*norm*"]),
    "relevance without a ledger": _relevance(ledger=False),
    "relevance whole": _relevance(checkpoint="whole"),
    "relevance recomputed": _relevance(checkpoint="recompute", rules="exact"),
    "relevance with rules of one's own": _relevance(rules=conserva.rules("exact", gamma=0.1), trusted=["Nothing"]),
    "several targets": _several,
    "rules": _in_rules,
    "replaying": _replaying,
    "audit": lambda one: conserva.audit(one.model, one.inputs, _aim(one)),
    "verify": _verify,
    "examine": lambda one: examine(one.model, one.inputs, _aim(one)),
}


def _explain(method: str) -> Callable[[Subject], Any]:
    return lambda one: explain(one.task, one.given, one.target, method=method)  # type: ignore[arg-type]


def _trace(one: Subject) -> Any:
    return conserva.trace(one.task, one.given, one.target)  # type: ignore[arg-type]


def _evaluate(one: Subject) -> Any:
    return conserva.evaluate(one.task, TEXTS[:2], ["ah+ln", "rollout"], random_seeds=1)  # type: ignore[arg-type]


def _bias(one: Subject) -> Any:
    groups = {"women": ["Mary"], "men": ["John"]}
    return conserva.bias(one.task, [text for text, _ in TEXTS], groups, swaps=2)  # type: ignore[arg-type]


def _generation(one: Subject) -> Any:
    return conserva.explain_generation(one.task, one.given, tokens=3)  # type: ignore[arg-type]


def _compare(one: Subject) -> Any:
    from conserva import cli
    from conserva.tasks import loading

    with contextlib.redirect_stdout(io.StringIO()) as out, _instead(loading, "load", lambda *_, **__: one.task):
        code = cli.main(["compare", SENTENCE, "--methods", "gi,ah+ln:at=embeddings,rollout", "--json"])
    if code == 130:  # as programs end that are interrupted
        raise KeyboardInterrupt
    return out.getvalue()


@contextlib.contextmanager
def _instead(module: Any, name: str, value: Any) -> Any:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _with_options(name: str) -> list[str]:
    """Return a method, and with its options set to other values."""
    given = options(name)
    others = {"at": "embeddings", "gamma": 0.1, "steps": 3, "rows": "all", "seed": 3}
    chosen = {key: others[key] for key in given if key in others}
    return [name, *(f"{name}:{key}={value}" for key, value in chosen.items())]


ABOUT_TASKS: Mapping[str, Callable[[Subject], Any]] = {
    **{f"explain {each}": _explain(each) for name in methods() for each in _with_options(name)},
    "trace": _trace,
}
ABOUT_TEXTS: Mapping[str, Callable[[Subject], Any]] = {"evaluate": _evaluate, "bias": _bias, "compare": _compare}
ABOUT_WRITERS: Mapping[str, Callable[[Subject], Any]] = {"generation": _generation}


def questions(name: str) -> dict[str, Callable[[Subject], Any]]:
    """Return what can be asked about a subject."""
    found = dict(ABOUT_MODELS)
    if subject(name).task is not None:
        found.update(ABOUT_TASKS)
    if name in ("sentiment", "text"):
        found.update(ABOUT_TEXTS)
    if isinstance(subject(name).task, (conserva.Causal, conserva.Seq2Seq)):
        found.update(ABOUT_WRITERS)
    return found
