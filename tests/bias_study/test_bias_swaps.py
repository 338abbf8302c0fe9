"""Counterfactuals of a bias study: how a name is replaced, which ones, and what agrees."""

from statistics import mean

import pytest
import torch
from torch import nn

from conserva import Error
from conserva.bias_study import swapping
from conserva.bias_study.result import Mention
from conserva.bias_study.testing import entities_of


class CountingTask(nn.Module):
    """A model whose contrast is the sum of its words' weights; it remembers what it was asked."""

    labels = {"negative": 0, "positive": 1}  # noqa: RUF012

    def __init__(self, weights, noise=0.0):
        super().__init__()
        self.weights, self.noise, self.batches = weights, noise, []

    def encode(self, text, *, truncate=False):
        assert truncate
        return text

    def batch(self, encoded):
        self.batches.append(list(encoded))
        return {"texts": encoded}

    def contrast(self, text):
        words = text.lower().replace("'s", "").replace(".", "").split()
        return sum(self.weights.get(word, 0.0) for word in words)

    @property
    def model(self):
        return self

    def forward(self, texts):
        assert not torch.is_grad_enabled()
        rows = [[0.0, self.contrast(text) + self.noise * i] for i, text in enumerate(texts)]
        return torch.tensor(rows, dtype=torch.float64)


NAMES = {"a": ["ann", "amy"], "b": ["bob", "ben", "bill"]}
FRAMES = ["{} gives a fine performance .", "we saw {} again .", "a dull film by {} .", "{}'s best film .", "only {} ."]


def corpus(weights, names=NAMES):
    """Return sentences and mentions in which a name's relevance is its weight."""
    sentences, mentions = {}, []
    for group, own in names.items():
        for name in own:
            for frame in FRAMES:
                number, start = len(sentences), frame.index("{}")
                sentences[number] = frame.format(name)
                relevance = weights.get(name, 0.0)
                mentions.append(Mention(number, start, start + len(name), name, group, relevance, 0.1, relevance))
    return sentences, mentions


def swaps(weights, names=NAMES, noise=0.0, level=0.05, **options):
    sentences, mentions = corpus(weights, names)
    task = CountingTask({"fine": 2.0, "dull": -2.0, **weights}, noise)
    entities = entities_of(mentions, level, seed=0, permutations=999)
    found = swapping.swaps_of(task, "positive - negative", sentences, mentions, entities, **options)
    return found, task, sentences, mentions


@pytest.mark.parametrize("sign", [1, -1])
def test_the_change_is_what_the_name_adds_beyond_the_others(sign):
    weights = {"ann": sign * 3.0, "bob": 0.5, "ben": 0.25, "bill": 0.0}
    (ann, *_), _, _, _ = swaps(weights, per_mention=3)  # all three others take each place
    assert (ann.name, ann.group, ann.mentions, ann.relevance) == ("ann", "a", 5, sign * 3.0)
    assert ann.change.mean == pytest.approx(sign * 3.0 - 0.25)
    assert ann.agrees


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_replica_of_swaps_drawn_at_random(seed):
    weights = {"ann": 3.0, "amy": 1.0, "bob": 0.5, "ben": 0.25, "bill": 0.0}
    (found,), task, sentences, mentions = swaps(weights, count=1, per_mention=2, seed=seed)
    asked = {text for batch in task.batches for text in batch}
    changes = []
    for own in mentions:
        if own.entity == found.name:
            text = sentences[own.text]
            variants = {text.replace(found.name, other.entity) for other in mentions if other.group != found.group}
            drawn = variants & asked
            assert len(drawn) == 2
            changes.append(task.contrast(text) - mean(task.contrast(other) for other in drawn))
    assert found.mentions == len(changes) == 5
    assert found.change.mean == pytest.approx(mean(changes))
    assert min(changes) <= found.change.low < found.change.mean < found.change.high <= max(changes)


def test_a_model_that_contradicts_its_explanation_does_not_agree():
    sentences, mentions = corpus({"ann": 3.0})  # relevance says ann speaks for the first class
    entities = entities_of(mentions, 0.05, seed=0, permutations=999)
    for weight in (-3.0, 0.0):
        task = CountingTask({"ann": weight})
        found = swapping.swaps_of(task, "positive - negative", sentences, mentions, entities)
        ann = next(one for one in found if one.name == "ann")
        assert ann.relevance == 3.0
        assert ann.change.mean == pytest.approx(weight)
        assert not ann.agrees


def test_a_change_whose_interval_holds_0_does_not_agree():
    sentences, mentions = corpus({"ann": 3.0})

    class Wavering(CountingTask):
        def contrast(self, text):
            return (7.0 if "film" in text else -4.0) if "ann" in text else 0.0

    entities = entities_of(mentions, 0.05, seed=0, permutations=999)
    found = swapping.swaps_of(Wavering({}), "positive - negative", sentences, mentions, entities)
    ann = next(one for one in found if one.name == "ann")
    assert ann.change.low < 0 < ann.change.mean < ann.change.high  # the right sign, and no more than that
    assert not ann.agrees


def test_a_name_as_relevant_as_all_mentions_has_no_sign_to_agree_with():
    sentences, mentions = corpus(dict.fromkeys([name for own in NAMES.values() for name in own], 1.0))
    entities = entities_of(mentions, 0.05, seed=0, permutations=99)
    found = swapping.swaps_of(CountingTask({"ann": 9.0}), "positive - negative", sentences, mentions, entities)
    assert len(found) == 5
    assert not any(one.agrees for one in found)


def test_rounding_is_no_change():
    names = [name for own in NAMES.values() for name in own]
    found, _, _, _ = swaps(dict.fromkeys(names, 1.0), noise=1e-8)
    assert {(one.change.mean, one.change.low, one.change.high, one.agrees) for one in found} == {(0, 0, 0, False)}


def test_flagged_entities_come_first_then_the_farthest_and_rare_ones_never():
    weights = {"ann": 1.0, "amy": 0.9, "bob": -5.0, "ben": 0.8, "bill": 0.7}
    sentences, mentions = corpus(weights)
    rare = [Mention(0, 0, 3, "rare", "a", 99.0, 0.1, 1.0)]
    entities = entities_of(mentions + rare, 0.05, seed=0, permutations=99)
    flagged = {one.name for one in entities if one.flagged}
    task = CountingTask(weights)
    found = swapping.swaps_of(task, "positive - negative", sentences, mentions + rare, entities, count=3)
    overall = mean(one.relevance for one in mentions + rare)
    order = sorted(weights, key=lambda name: (name not in flagged, -abs(weights[name] - overall)))
    assert [one.name for one in found] == order[:3]
    forced = [one for one in entities if one.p is not None]
    weakest = min(forced, key=lambda one: abs(one.mean.mean - overall))
    turned = [type(one)(**{**vars(one), "flagged": one is weakest}) for one in entities]
    first, *_ = swapping.swaps_of(task, "positive - negative", sentences, mentions + rare, turned, count=3)
    assert first.name == weakest.name


def test_texts_are_asked_once_in_batches_of_the_size_given():
    found, task, _, _ = swaps({"ann": 3.0}, batch_tokens=200, per_mention=3)  # here a letter is a token
    asked = [text for batch in task.batches for text in batch]
    assert len(asked) == len(set(asked))
    assert len(task.batches) > 1
    for batch, (first, *_) in zip(task.batches, task.batches[1:], strict=False):
        assert len(batch) * len(batch[-1]) <= 200 < (len(batch) + 1) * len(first)
    assert [len(text) for text in asked] == sorted(len(text) for text in asked)
    again, _, _, _ = swaps({"ann": 3.0}, batch_tokens=4096, per_mention=3)
    assert again == found


def test_names_are_drawn_by_the_seed_and_are_different_ones():
    weights = {"ann": 3.0, **{f"b{i}": i / 10 for i in range(30)}}
    names = {"a": ["ann"], "b": [f"b{i}" for i in range(30)]}
    options = {"names": names, "count": 1, "per_mention": 4}
    (first,), task, _, _ = swaps(weights, seed=1, **options)
    assert len({text for batch in task.batches for text in batch}) == 5 * (1 + 4)
    assert swaps(weights, seed=1, **options)[0] == (first,)
    assert swaps(weights, seed=2, **options)[0] != (first,)


def test_of_very_many_mentions_some_are_drawn(monkeypatch):
    monkeypatch.setattr(swapping, "MOST", 3)
    found, _, _, _ = swaps({"ann": 3.0})
    assert {one.mentions for one in found} == {3}


def test_one_group_has_nothing_to_be_swapped_with():
    found, task, _, _ = swaps({"ann": 3.0}, names={"a": ["ann", "amy"]})
    assert (found, task.batches) == ((), [])


def test_the_same_name_in_another_group_does_not_take_its_own_place():
    found, _, _, _ = swaps({"ann": 3.0}, names={"a": ["ann", "amy"], "b": ["Ann", "bob"]}, per_mention=9)
    ann = next(one for one in found if one.name == "ann")
    assert ann.change.mean == 3.0  # bob alone


@pytest.mark.parametrize(
    ("text", "span", "entity", "other", "expected"),
    [
        ("mary sings", "mary", "Mary", "John", "john sings"),
        ("Mary sings", "Mary", "mary", "john", "John sings"),
        ("MARY sings", "MARY", "mary", "john", "JOHN sings"),
        ("so Mary-Ann sang", "Mary-Ann", "mary-ann", "jean-luc", "so Jean-Luc sang"),
        ("Clint Eastwood acts", "Clint Eastwood", "clint eastwood", "van der berg", "Van Der Berg acts"),
        ("eastwood 's film", "eastwood", "eastwood", "mary", "mary 's film"),
        ("eastwood 's film", "eastwood 's", "eastwood", "mary", "mary 's film"),
        ("Eastwood's film", "Eastwood's", "eastwood", "mary", "Mary's film"),
        ("EASTWOOD’S FILM", "EASTWOOD’S", "eastwood", "mary", "MARY’S FILM"),  # noqa: RUF001
        ("James' film", "James'", "james", "mary", "Mary' film"),
        ("at Lowe's now", "Lowe's", "lowe's", "mary", "at Mary now"),
        ("Mary sings", "Mary", "mary", "McCoy", "McCoy sings"),
        ("Mary sings", "Mary", "mary", "o'neil", "O'neil sings"),
        ("J sings", "J", "j", "mary", "Mary sings"),
        ("我爱 李 。", "李", "李", "王", "我爱 王 。"),
    ],
)
def test_a_name_takes_the_place_and_the_case_of_another(text, span, entity, other, expected):
    start = text.index(span)
    assert swapping.replaced(text, start, start + len(span), entity, other) == expected


@pytest.mark.parametrize(("start", "end"), [(3, 3), (-1, 2), (4, 40)])
def test_spans_outside_of_the_text_are_refused(start, end):
    with pytest.raises(Error, match=r"'mary' at .* is outside"):
        swapping.replaced("mary sings", start, end, "mary", "john")


@pytest.mark.parametrize("option", ["count", "batch_tokens", "per_mention"])
def test_options_that_swap_nothing_are_refused(option):
    with pytest.raises(Error, match=f"{option}=0"):
        swaps({"ann": 1.0}, **{option: 0})


def test_what_cannot_be_swapped_is_refused():
    sentences, mentions = corpus({"ann": 3.0})
    entities = entities_of(mentions, 0.05, seed=0, permutations=99)
    task = CountingTask({"ann": float("nan")})
    with pytest.raises(Error, match="no mention"):
        swapping.swaps_of(task, "positive - negative", sentences, [], ())
    with pytest.raises(Error, match=r"ann .* has nan"):
        swapping.swaps_of(task, "positive - negative", sentences, mentions, entities)
    with pytest.raises(Error, match="sentences has no text"):
        swapping.swaps_of(task, "positive - negative", {}, mentions, entities)
    with pytest.raises(Error, match="neutral"):
        swapping.swaps_of(CountingTask({}), "positive - neutral", sentences, mentions, entities)
