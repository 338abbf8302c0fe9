"""Traces: the books close at every layer, and the columns are the features."""

import re
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    BartConfig,
    BartForConditionalGeneration,
    BartForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
)

import conserva
from conserva.explaining.layers import stacks_of
from conserva.explaining.trace import trace
from conserva.results.trace import Trace
from conserva.tasks.reading import Answer, Reading
from conserva.tasks.task import Encoded, Task
from conserva.views.trace_page import page as trace_page
from made_up_traces import NASTY, SHOWN
from tiny import bert, llama, shake

SENTENCE = "has a lot of the virtues of eastwood at his best."
IDS, END = (7, 40, 12, 71, 33, 8), 2


# Tasks whose inputs are numbers, so that any network can be asked


@dataclass(frozen=True)
class Several(Encoded):
    """One row of ids, or two of them."""

    rows: tuple[tuple[int, ...], ...]

    @property
    def parts(self) -> tuple[int, ...]:
        return tuple(map(len, self.rows))


class Ids(Task):
    features = ("input_ids",)
    noun = "row of ids"
    method = "exact"

    def is_single(self, given: Any) -> bool:
        return isinstance(given, tuple)

    def encode(self, given: Any, *, truncate: bool = False) -> Several:
        rows = given if isinstance(given[0], tuple) else (given,)
        flat = [number for row in rows for number in row]
        special = tuple(number == END for number in flat)
        return Several("ids", tuple(map(str, flat)), special, tuple(range(len(flat))), rows)

    def batch(self, encoded: Any) -> dict[str, Tensor]:
        return {name: torch.tensor([row]) for name, row in zip(self.features, encoded[0].rows, strict=True)}

    def labelled(self, data: Any) -> Any: ...
    def mask(self, given: Any, preferred: Any) -> Any: ...
    def masked(self, encoded: Any, kept: Any, mask: Any) -> Any: ...
    def stack(self, parts: Any) -> Any: ...


class Pairs(Ids):
    features = ("input_ids", "decoder_input_ids")


class Patches(Ids):
    features = ("patches",)

    def batch(self, encoded: Any) -> dict[str, Tensor]:
        numbers = torch.randn(1, len(encoded[0]), 3 * 4 * 4, generator=torch.Generator().manual_seed(3))
        return {"patches": numbers.double()}


class OfPatches(Reading):
    def forward(self, patches: Tensor) -> Answer:
        squares = patches.reshape(-1, 2, 3, 3, 4, 4).permute(0, 3, 1, 4, 2, 5)
        return self.answer((found := self.ask(pixel_values=squares.reshape(-1, 3, 8, 12))).logits, found)


class LastOfAnswer(Reading):
    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Answer:
        found = self.ask(input_ids=input_ids, decoder_input_ids=decoder_input_ids)
        return self.answer(found.logits[:, -1], found)


class Registers(nn.Module):
    """A class token before the patches, as networks have it, and two more behind them."""

    def __init__(self, before: int, behind: int) -> None:
        super().__init__()
        self.before, self.behind = nn.Parameter(torch.randn(1, before, 16)), nn.Parameter(torch.randn(1, behind, 16))
        self.words = nn.Embedding(99, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(16, 3)

    def forward(self, input_ids: Tensor) -> Any:
        x = torch.cat([self.before, self.words(input_ids), self.behind], 1)
        return Answer(self.out(self.encoder(x).mean(1)))


_SMALL = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "vocab_size": 99, "max_position_embeddings": 32}
_SMALL |= {f"{part}_attention_heads": 2 for part in ("encoder", "decoder")}
_SMALL |= {f"{part}_ffn_dim": 24 for part in ("encoder", "decoder")}


def albert() -> nn.Module:
    sizes = {"hidden_size": 16, "embedding_size": 8, "num_attention_heads": 2, "intermediate_size": 24}
    return shake(AlbertForSequenceClassification(AlbertConfig(vocab_size=99, num_hidden_layers=3, **sizes)))


def vit() -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return shake(ViTForImageClassification(ViTConfig(image_size=(8, 12), patch_size=4, num_labels=3, **sizes)))


def ids(model: nn.Module, kind: type[Ids] = Ids) -> Ids:
    return kind(model.double(), "tiny")


CASES: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "bert": (lambda: ids(bert()), IDS, ("layer 0", "layer 1")),
    "llama": (lambda: ids(llama()), IDS, ("layer 0", "layer 1")),
    "albert": (lambda: ids(albert()), IDS, ("layer 0", "layer 1", "layer 2")),  # one layer, three times
    "vit": (lambda: ids(OfPatches(vit()), Patches), IDS, ("layer 0", "layer 1")),
    "registers": (lambda: ids(shake(Registers(1, 2))), IDS, ("layer 0", "layer 1")),
}


@pytest.mark.parametrize("case", CASES)
def test_every_layer_adds_up_with_what_joins_above_it(case: str) -> None:
    """Explained from a layer on, everything below is a constant: its ledger must have the row's sum as its inputs."""
    make, given, layers = CASES[case]
    task, rounding = make(), 1e-6 if case == "llama" else 1e-9  # llama's norms compute in float32
    found = trace(task, given)
    assert found.layers == ("inputs", *layers)
    assert abs(found.ledger.gap) < rounding
    assert found.sums[0] == pytest.approx(found.ledger.inputs, abs=rounding)
    inputs = task.batch([task.encode(given)])
    for name, total in zip(stacks_of(task.model, inputs)[0].calls, found.sums[1:], strict=True):
        if "#" in name or case == "albert":
            continue  # a layer that runs again cannot be cut by its name
        alone = conserva.relevance(task.model, inputs, rules="exact", at=name)
        assert abs(float(alone.ledger.gap)) < rounding
        assert total == pytest.approx(float(alone.ledger.inputs), abs=rounding)
        assert (total != pytest.approx(found.output, abs=1e-6)) == (case != "llama")  # which has no biases


@pytest.mark.parametrize("method", ["exact", "ah+ln", "gi", "attnlrp", "ah+ln:gamma=0.01"])
def test_the_first_row_is_the_explanation(method: str) -> None:
    task = conserva.load()
    found, one = (
        trace(task, SENTENCE, "negative", method=method),
        conserva.explain(task, SENTENCE, "negative", method=method),
    )
    assert found.scores[0] == one.scores
    assert found.layers == ("inputs", *(f"layer {i}" for i in range(4)))
    assert found.explanation() == one
    for name in (
        "features",
        "special",
        "words",
        "text",
        "target",
        "output",
        "probability",
        "ledger",
        "method",
        "provenance",
    ):
        assert getattr(found, name) == getattr(one, name), name


@pytest.mark.parametrize(("case", "place"), [("bert", 0), ("llama", len(IDS) - 1), ("albert", 0), ("vit", 0)])
def test_the_last_row_stands_where_the_classifier_reads(case: str, place: int) -> None:
    make, given, _ = CASES[case]
    *_, before, last = trace(make(), given).scores
    assert [i for i, score in enumerate(last) if score] == [place]
    assert sum(abs(score) > 1e-12 for score in before) > 1


def test_places_that_a_network_adds_have_columns_of_their_own() -> None:
    found = trace(CASES["vit"][0](), IDS)
    assert found.features == ("[cls]", *map(str, IDS))
    assert found.special == (True, *[False] * len(IDS))
    assert found.scores[0][0] is None
    assert None not in found.scores[1]
    around = trace(CASES["registers"][0](), IDS)
    assert around.features == ("[added 0]", *map(str, IDS), "[added 1]", "[added 2]")
    assert [i for i, score in enumerate(around.scores[0]) if score is None] == [0, 7, 8]


def test_an_encoder_and_a_decoder_have_their_own_columns() -> None:
    torch.manual_seed(0)
    task = ids(LastOfAnswer(shake(BartForConditionalGeneration(BartConfig(**_SMALL)))), Pairs)
    found = trace(task, (IDS, (END, 50, 9)))
    assert found.layers == (
        *("inputs", "encoder layer 0", "encoder layer 1"),
        *("decoder layer 0", "decoder layer 1", "decoder layer 2"),
    )
    for layer, row in zip(found.layers, found.scores, strict=True):
        there = [i for i, score in enumerate(row) if score is not None]
        parts = {"inputs": range(9), "encoder": range(6), "decoder": range(6, 9)}
        assert there == list(parts[layer.split()[0]])
    assert [i for i, score in enumerate(found.scores[-1]) if score] == [8]
    assert abs(found.ledger.gap) < 1e-9


def test_the_model_is_as_it_was() -> None:
    task = CASES["bert"][0]()
    before = {name: x.clone() for name, x in task.model.state_dict().items()}
    trace(task, IDS)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in task.model.modules())
    assert all(torch.equal(x, before[name]) for name, x in task.model.state_dict().items())


# What is refused


class Pooling(nn.Module):
    """Layers that halve the places."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(99, 8), nn.Linear(8, 2)
        self.layers = nn.ModuleList(nn.Sequential(nn.AvgPool1d(2), nn.Linear(3 - i * 2, 3 - i * 2)) for i in range(2))

    def forward(self, input_ids: Tensor) -> Answer:
        x = self.words(input_ids)
        for layer in self.layers:
            x = layer(x.transpose(1, 2)).transpose(1, 2)
        return Answer(self.out(x.mean(1)))


class NoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(99, 8), nn.Linear(8, 2)

    def forward(self, input_ids: Tensor) -> Answer:
        return Answer(self.out(self.words(input_ids).mean(1)))


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no task": (lambda: "bert", {}, "'bert', which is not a task"),
    "no rule set": (conserva.load, {"method": "rollout"}, "'rollout' gives no relevance .* needs a rule set"),
    "embeddings": (conserva.load, {"method": "ah+ln:at=embeddings"}, "at=embeddings.* needs a rule set at the inputs"),
    "a list": (conserva.load, {"inputs": [SENTENCE, "dull"]}, r"inputs=\['has a lot.*is not a single text"),
    "empty": (conserva.load, {"inputs": "  "}, "is empty"),
    "too long": (conserva.load, {"inputs": "fine " * 600}, "602 tokens.*takes 512.*truncate=True"),
    "unknown label": (conserva.load, {"target": "sad"}, "sad"),
    "other positions": (lambda: ids(Pooling().eval()), {"inputs": IDS}, r"the 6 positions .* \(8 in layers\)"),
    "fewer positions": (lambda: conserva.load("bace"), {"inputs": "CCO"}, "the 4 positions .*no list of layers"),
    "no layers": (lambda: ids(NoLayers().eval()), {"inputs": IDS}, "no list of layers has a fixed number"),
    "read twice": (
        lambda: ids(shake(BartForSequenceClassification(BartConfig(**_SMALL)))),
        {"inputs": (*IDS, END)},
        r"the 7 positions .* \(7 in model.encoder.layers, 7 in model.decoder.layers\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    make, settings, message = REFUSED[case]
    with pytest.raises(conserva.Error, match=message):
        trace(make(), **{"inputs": SENTENCE, **settings})


def test_a_trace_is_cut_only_if_it_is_said() -> None:
    assert len(trace(conserva.load(), "fine " * 600, truncate=True).features) == 512


def test_a_trace_is_stored(tmp_path: Any) -> None:
    found = trace(CASES["vit"][0](), IDS)
    assert Trace.load(found.save(tmp_path / "one.json")) == found
    with pytest.raises(conserva.Error, match=r"'.doc': choose .json, .html"):
        found.save(tmp_path / "one.doc")
    with pytest.raises(conserva.Error, match=r"its schema is .*trace/9.*, not 'conserva/trace/1'; it was written by"):
        Trace.from_json(found.to_json().replace("trace/1", "trace/9"))
    with pytest.raises(conserva.Error, match="totals is not a known field"):
        Trace.from_json(found.to_json().replace('"sums"', '"totals"'))


# What is seen of it


def test_the_page_has_every_number_the_last_layer_first() -> None:
    text = trace_page(SHOWN)
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', text, re.DOTALL)
    assert [name for name, _ in rows] == ["layer 1", "layer 0", "inputs"]
    for (_, cells), scores in zip(rows, reversed(SHOWN.scores), strict=True):
        assert [float(x) for x in re.findall('data-score="(.*?)"', cells)] == [x for x in scores if x is not None]
        assert cells.count('<td class="cell') == len(SHOWN.features)
    assert "#2166ac" in rows[1][1]  # the largest score has the full colour
    assert 'data-label="inputs · [cls]: no such position"' in rows[2][1]
    labels = re.findall('<th class="label.*?<span dir="auto">(.*?)</span>', text, re.DOTALL)
    assert unescape(labels[1]) == NASTY
    assert "<script" not in text
    assert "gap +0.000 = +2.000" in text
    assert SHOWN._repr_html_().partition("</style>")[2].strip() in text


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf", ".html"])
def test_every_ending_is_written(tmp_path: Path, ending: str) -> None:
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF", ".html": b"<!doctype"}[ending]
    one = replace(SHOWN, features=("[cls]", NASTY, "film\n", "end"))  # matplotlib's own font has no other letters
    assert one.save(tmp_path / f"one{ending}").read_bytes().startswith(start)
