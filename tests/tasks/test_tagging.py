"""Token classification: which word is asked about, what it is called, and why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import conserva
from conserva.evaluation.protocol import PROTOCOLS
from conserva.evaluation.samples import Sample
from conserva.evaluation.stream import Stream
from conserva.tasks import Tokens
from tiny_heads import closes, is_as_it_was, model, scores_with_pads, state_of, tokenizer

LABELS = {0: "O", 1: "B-PER", 2: "B-LOC"}
TEXT = "an unwatchably long film by eastwood."


def tagger(kind: str = "bert") -> Tokens:
    names = {"id2label": LABELS, "label2id": {name: i for i, name in LABELS.items()}}
    return Tokens(model(kind, "AutoModelForTokenClassification", **names), tokenizer(), kind)


@pytest.fixture(scope="module")
def task() -> Tokens:
    return tagger()


class Table(nn.Module):
    """A tagger that looks the label of each word up."""

    def __init__(self, known: dict[str, int], labels: dict[int, str], usual: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(id2label=labels)
        self.scores = nn.Embedding(12000, len(labels))
        with torch.no_grad():
            self.scores.weight.zero_()[:, usual] = 1
            for word, label in known.items():
                self.scores.weight[tokenizer()(word, add_special_tokens=False)["input_ids"], label] = 2

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return SimpleNamespace(logits=self.scores(input_ids))


@pytest.mark.parametrize("kind", ["bert", "electra", "distilbert", "deberta-v2"])
def test_books_close_and_the_asked_word_is_read(kind: str) -> None:
    task = tagger(kind)
    before = state_of(task.network)
    one = conserva.explain(task, (TEXT, "film"), "B-PER", method="exact")
    assert closes(one)
    place = one.features.index("film")
    ids = torch.tensor([task.encode((TEXT, "film")).ids])
    with torch.no_grad():
        logits = task.network(input_ids=ids).logits[0, place]
    assert one.output == pytest.approx(float(logits[1]), rel=1e-6)
    assert one.probability == pytest.approx(float(logits.softmax(-1)[1]), rel=1e-5)
    assert one.target == "B-PER"
    assert is_as_it_was(task.network, before)


def test_many_equal_single_ones_and_pads_get_nothing(task: Tokens) -> None:
    given = [(TEXT, "film"), ("a joy.", 1), ("clint eastwood at his very best", "eastwood")]
    many = conserva.explain(task, given, ["B-LOC", 0, "B-LOC - O"], method="exact")
    for pair, target, one in zip(given, ["B-LOC", 0, "B-LOC - O"], many, strict=True):
        alone = conserva.explain(task, pair, target, method="exact")
        assert one.scores == pytest.approx(alone.scores, abs=1e-12)
        assert (one.text, one.target) == (alone.text, alone.target)
    encoded = [task.encode(pair) for pair in given]
    scores = scores_with_pads(task, encoded)["input_ids"]
    for row, one in zip(scores, encoded, strict=True):
        assert row[: len(one)].ne(0).all()
        assert row[len(one) :].eq(0).all()


def test_targets(task: Tokens) -> None:
    each = [conserva.explain(task, (TEXT, "film"), label, method="exact").output for label in LABELS.values()]
    predicted = conserva.explain(task, (TEXT, "film"))
    assert predicted.target == LABELS[int(np.argmax(each))]
    assert conserva.explain(task, (TEXT, "film"), 2, method="exact").output == each[2]
    contrast = conserva.explain(task, (TEXT, "film"), "B-LOC - B-PER", method="exact")
    assert contrast.output == pytest.approx(each[2] - each[1])
    assert contrast.probability is None
    with pytest.raises(conserva.Error, match=r"'B-ORG'.*'O', 'B-PER', 'B-LOC'"):
        conserva.explain(task, (TEXT, "film"), "B-ORG")


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("unwatchably", "unwatchably"),
        (1, "unwatchably"),
        ("long film", "long"),
        (" film ", "film"),
        (".", "."),
    ],
)
def test_the_word_that_is_asked_about(task: Tokens, word: Any, shown: str) -> None:
    one = task.encode((TEXT, word))
    assert TEXT[slice(*one.spans[one.read])].startswith(one.tokens[one.read])
    assert one.words.index(one.words[one.read]) == one.read
    assert one.text == f"{TEXT} [word: {shown}]"


@pytest.mark.parametrize(
    ("labels", "known", "found"),
    [
        ({0: "O", 1: "PER"}, {"eastwood": 1, "film": 1}, "film"),
        ({0: "PER", 1: "O"}, {"eastwood": 0}, "eastwood"),
        ({0: "NOUN", 1: "VERB"}, {"long": 0, "eastwood": 0}, "long"),  # most are verbs
        ({0: "O", 1: "PER"}, {".": 1, "eastwood": 1}, "eastwood"),
        ({0: "O", 1: "PER"}, dict.fromkeys(["joy", ",", "long", "film", "by", "eastwood"], 1), "joy"),  # O is rare
    ],
)
def test_a_text_alone_is_asked_about_its_first_word_of_note(
    labels: dict[int, str], known: dict[str, int], found: str
) -> None:
    usual = 1 - next(iter(known.values()))
    task = Tokens(Table(known, labels, usual).eval(), tokenizer())
    texts = ["a joy, long film by eastwood.", "a long film by joy" if found == "long" else f"a {found}"]
    for text, one in zip(texts, task.encode_all(texts), strict=True):
        assert one.text == f"{text} [word: {found}]"
    mixed = task.encode_all([(texts[0], "joy"), texts[0], (texts[0], 0)])
    assert [one.tokens[one.read] for one in mixed] == ["joy", found, "a"]


def test_a_text_without_such_a_word_says_how_to_choose() -> None:
    task = Tokens(Table({}, {0: "O", 1: "PER"}, 0).eval(), tokenizer(), "dull tagger")
    with pytest.raises(conserva.Error, match=r"dull tagger labels every word of .*'a joy\.' as 'O': .*\(text, word\)"):
        task.encode("a joy.")
    assert task.encode(("a joy.", "joy")).read == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "text='' is empty"),
        (("  ", "word"), "text='  ' is empty"),
        ((TEXT, ""), "word='' of the text 'an unwatchably.* is empty"),
        ((TEXT, "horse"), "word='horse' is not a word of the text beginning 'an unwatchably"),
        ((TEXT, "a"), "word='a' is not a word"),  # it stands only within others
        ((TEXT, "fil"), "word='fil' is not a word"),
        ((TEXT, 7), "word=7: .* has words 0 to 6"),
        ((TEXT, -1), "word=-1"),
        ((TEXT, 1.5), "1.5.* is neither a text nor"),
        ((TEXT, True), "True.* is neither a text nor"),
        (7, "7 is neither a text nor"),
        ((7, "film"), "7 is not a string"),
        (("good " * 600, "good"), "602 tokens, the model takes 128"),
    ],
)
def test_bad_inputs_are_refused(task: Tokens, given: Any, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        conserva.explain(task, [given])


def test_a_word_that_was_cut_off_is_refused(task: Tokens) -> None:
    long = "good " * 300 + "film"
    assert len(task.encode((long, 7), truncate=True)) == task.longest
    with pytest.raises(conserva.Error, match="truncated with its end"):
        task.encode((long, "film"), truncate=True)


def test_a_model_with_another_head_is_refused() -> None:
    other = Tokens(conserva.load().model, tokenizer())
    with pytest.raises(conserva.Error, match="returns no logits at every token"):
        conserva.explain(other, (TEXT, "film"))
    with pytest.raises(conserva.Error, match=r"not a torch\.nn\.Module"):
        Tokens("model", tokenizer())  # type: ignore[arg-type]


def test_the_same_text_is_measured_for_each_of_its_words(task: Tokens) -> None:
    encoded = [task.encode((TEXT, word)) for word in ("film", "eastwood")]
    whole = np.ones((1, len(encoded[0])), dtype=bool)
    found = Stream(task).logits([task.masked(one, whole, "mask") for one in encoded])
    for one, logits in zip(encoded, found, strict=True):
        with torch.no_grad():
            expected = task.network(input_ids=torch.tensor([one.ids])).logits[0, one.read]
        assert logits[0] == pytest.approx(expected.numpy(), rel=1e-5)
    for protocol in PROTOCOLS.values():
        kept = ~Sample(0, encoded[0], None).maskable(protocol)
        assert kept[encoded[0].read]
        assert kept.sum() == (1 if protocol.special else 3)


def test_evaluation_and_audit_take_words(task: Tokens) -> None:
    data = [((TEXT, "film"), "O"), (("a joy.", "joy"), "B-PER")]
    found = conserva.evaluate(task, data, ["exact"], protocol="paper", reference=False)
    assert found.samples == 2
    assert found.refused == {}
    with pytest.raises(conserva.Error, match=r"data='file.csv' is not a list of inputs"):
        conserva.evaluate(task, "file.csv", ["exact"])
    with pytest.raises(conserva.Error, match="only some with a label"):
        conserva.evaluate(task, [((TEXT, "film"), "O"), "a joy."], ["exact"])
    audit = conserva.audit(task, (TEXT, "film"), "B-PER", rules="exact")
    assert abs(audit.ledger.gap) < 1e-10 * max(1, abs(audit.output))


def test_a_word_that_stands_twice_is_asked_for_by_its_number(task: Tokens) -> None:
    with pytest.raises(conserva.Error, match=r"word='joy' occurs 2 times .* give the number of one, such as 1 or 3"):
        conserva.explain(task, ("a joy of joy", "joy"))
    assert conserva.explain(task, ("a joy of joy", 3)).output
