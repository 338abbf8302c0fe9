"""Bias studies from end to end: what falls on mentions, corpora of every kind, runs that stop, bad input."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pyarrow.parquet
import pytest
from transformers import BatchEncoding

import conserva
from bias_data import GROUPS, LABELS, TEXTS, known
from conserva import BiasStudy, Error
from conserva.bias_study import collect
from conserva.bias_study.collect import NAME
from conserva.bias_study.store import save
from reviews import Runs
from tiny import bert

EXPLAINED = [0, 2, 3, 4, 6, 7]


@pytest.fixture(scope="module")
def three(task: conserva.Text) -> conserva.Text:
    return conserva.Text(bert(vocab_size=len(task.tokenizer)), task.tokenizer, "three classes")


# What is found.


def test_a_study_has_every_mention_in_the_order_of_the_corpus(study: BiasStudy) -> None:
    places = [(one.text, one.entity, study.sentences[one.text][one.start : one.end]) for one in study.mentions]
    assert places == [
        (0, "Eastwood", "eastwood"),
        (2, "Clint Eastwood", "clint eastwood"),
        (2, "Eastwood", "eastwood"),
        (3, "Kurosawa", "kurosawa"),
        (4, "Meryl Streep", "meryl streep"),
        (4, "Denzel", "denzel"),
        (6, "Sofia Coppola", "sofia coppola"),
        (6, "Meryl Streep", "meryl streep"),
        (7, "Denzel", "denzel"),
    ]
    assert study.sentences == {number: TEXTS[number] for number in EXPLAINED}
    assert study.texts == len(TEXTS)
    assert study.left_out == {"Will": 1}
    assert study.target == "positive - negative"
    assert study.provenance["groups"]["words"] == {"directors": 4, "actors": 3}
    assert study.provenance["beyond_cut"] == 0
    assert [(one.name, one.mentions, one.texts) for one in study.groups] == [("directors", 5, 4), ("actors", 4, 3)]
    assert [(one.a, one.b) for one in study.differences] == [("directors", "actors")]
    assert {one.name for one in study.entities} == {*GROUPS["directors"], "Meryl Streep", "Denzel"}


def test_relevance_is_the_sum_over_the_pieces_of_a_mention(task: conserva.Text, study: BiasStudy) -> None:
    for number in EXPLAINED:
        why = conserva.explain(task, TEXTS[number], "positive - negative")
        words = why.merged().visible()
        whole = sum(map(abs, words.scores))
        for one in (one for one in study.mentions if one.text == number):
            before = len(re.findall(r"\w+|[^\w\s]", TEXTS[number][: one.start]))  # BERT's words: marks are words, too
            length = len(one.entity.split())
            relevance = sum(words.scores[before : before + length])
            assert one.relevance == pytest.approx(relevance, abs=1e-4)
            assert one.share == pytest.approx(abs(relevance) / whole, abs=1e-4)
            assert one.output == pytest.approx(why.output, abs=1e-4)
    pieces = [task.encode(text).tokens for text in ("eastwood", "kurosawa")]
    assert max(map(len, pieces)) > 3  # some name has several pieces, or nothing is summed


@pytest.mark.parametrize(
    "given",
    {
        "a list": lambda path: TEXTS,
        "an iterator": lambda path: iter(TEXTS),
        "a generator": lambda path: (text for text in TEXTS),
        "a file": lambda path: path,
    }.values(),
)
def test_corpora_of_every_kind(task: conserva.Text, study: BiasStudy, tmp_path: Path, given) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS), encoding="utf-8")
    found = conserva.bias(task, given(path), GROUPS)
    assert [one.relevance for one in found.mentions] == [one.relevance for one in study.mentions]
    assert found.sentences == study.sentences
    assert found.texts == len(TEXTS)
    assert {one.label for one in found.mentions} == {None}


def test_labels_are_those_of_the_contrast(task: conserva.Text, three: conserva.Text, study: BiasStudy) -> None:
    assert [one.label for one in study.mentions] == [LABELS[one.text] for one in study.mentions]
    around = conserva.bias(task, list(zip(TEXTS, LABELS, strict=True)), GROUPS, target="negative - positive", swaps=0)
    assert [one.label for one in around.mentions] == [1 - LABELS[one.text] for one in study.mentions]
    assert [one.relevance for one in around.mentions] == pytest.approx([-one.relevance for one in study.mentions])
    names = ["neutral", "positive", "NEGATIVE", "neutral", "positive", "neutral", "negative", "positive"]
    found = conserva.bias(three, list(zip(TEXTS, names, strict=True)), GROUPS, swaps=0)
    sides = {"positive": 1, "neutral": None, "negative": 0}
    assert [one.label for one in found.mentions] == [sides[names[one.text].lower()] for one in found.mentions]


def test_without_a_target_a_model_of_two_classes_contrasts_them(task: conserva.Text, study: BiasStudy) -> None:
    found = conserva.bias(task, TEXTS, GROUPS, target=None, swaps=0)
    assert found.target == "positive - negative"
    assert [one.relevance for one in found.mentions] == [one.relevance for one in study.mentions]


def test_what_stands_after_the_cut_is_dropped_and_counted(three: conserva.Text) -> None:
    long = "eastwood " + "very " * 600 + "denzel ."
    found = conserva.bias(three, [*TEXTS, long], GROUPS, swaps=0)
    assert [one.entity for one in found.mentions if one.text == len(TEXTS)] == ["Eastwood"]
    assert found.provenance["beyond_cut"] == 1
    with pytest.raises(Error, match=r"Text 9: .* tokens, the model takes 512"):
        conserva.bias(three, [*TEXTS, long], GROUPS, truncate=False)


def test_ordinary_words_may_be_kept(three: conserva.Text) -> None:
    found = conserva.bias(three, TEXTS, GROUPS, ordinary="keep", swaps=0)
    assert [one.text for one in found.mentions if one.entity == "Will"] == [5]
    assert found.left_out == {}


def test_swaps_are_asked_for(study: BiasStudy, three: conserva.Text) -> None:
    texts = ["eastwood , he says .", "denzel , he says ."] * 6
    assert conserva.bias(three, texts, GROUPS, swaps=0).swaps == ()
    assert len(conserva.bias(three, texts, GROUPS, swaps=1).swaps) == 1


def test_a_tagger_finds_groups_of_its_own(three: conserva.Text) -> None:
    def tagger(text: str) -> list[tuple[int, int, str]]:
        return [(text.index(name), text.index(name) + 8, "PER") for name in ("eastwood", "kurosawa") if name in text]

    found = conserva.bias(three, TEXTS, tagger, swaps=0)
    assert [one.name for one in found.groups] == ["PER"]
    assert [(one.text, one.entity) for one in found.mentions] == [(0, "eastwood"), (2, "eastwood"), (3, "kurosawa")]


def test_tokens_know_their_characters(task: conserva.Text) -> None:
    text = "Kurosawa's na\u00efve  joy."
    found = task.encode(text)
    assert [span is None for span in found.spans] == list(found.special)
    there = [text[span[0] : span[1]] for span in found.spans if span is not None]
    assert "".join(there) == text.replace(" ", "")


def test_a_tokenizer_that_does_not_tell_is_refused(three: conserva.Text) -> None:
    class Slow:
        def __getattr__(self, name: str):
            return getattr(three.tokenizer, name)

        def __call__(self, *given, **options):
            return BatchEncoding(dict(three.tokenizer(*given, **options)))

    slow = conserva.Text(three.model, Slow(), "slow")
    assert set(slow.encode("a joy").spans) == {None}
    with pytest.raises(Error, match="load a fast tokenizer"):
        conserva.bias(slow, TEXTS, GROUPS)


# Runs on disk.

RUN = """
import sys, time
import conserva
from conserva.bias_study import collect
explained = collect.explain_with
def slowly(recorder, task, texts, *rest, **options):
    print("explaining", len(texts), flush=True)
    time.sleep(float(sys.argv[2]))
    return explained(recorder, task, texts, *rest, **options)
collect.explain_with = slowly
collect.AT_ONCE = 2
texts = [line for line in open(sys.argv[3], encoding="utf-8").read().splitlines() if line]
conserva.bias(conserva.load(), iter(texts), {"a": ["Eastwood", "Kurosawa"], "b": ["Meryl Streep", "Denzel", "Will"]},
              batch_tokens=40, out=sys.argv[1])
"""


def test_killed_and_started_again_it_ends_the_same(tmp_path: Path) -> None:
    start = Runs(RUN, TEXTS, tmp_path).start
    unbroken = start("unbroken", "0")
    assert unbroken.communicate(timeout=120)[0].split() == ["explaining", "2"] * 3
    broken = start("broken", "1")
    for _ in range(2):
        broken.stdout.readline()  # it is at work on the second pair
    broken.send_signal(signal.SIGKILL)
    broken.wait()
    journal = tmp_path / "broken" / NAME
    assert journal.read_text(encoding="utf-8").count("\n") == 2
    assert not (tmp_path / "broken" / "bias.json").exists()
    with journal.open("ab") as file:
        file.write(b'{"texts": 3, "sentences": "' + b"-" * 10_000)  # half a line
    again = start("broken", "0")
    assert again.communicate(timeout=120)[0].split() == ["explaining", "2"] * 2
    whole, mended = (tmp_path / name / "bias.json" for name in ("unbroken", "broken"))
    assert mended.read_text(encoding="utf-8") == whole.read_text(encoding="utf-8")
    assert (tmp_path / "unbroken" / NAME).read_bytes() == journal.read_bytes()


def test_a_run_that_ended_is_not_explained_again(
    three: conserva.Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = conserva.bias(three, TEXTS, GROUPS, out=tmp_path, swaps=0)
    lines = (tmp_path / NAME).read_bytes()
    monkeypatch.setattr(collect, "explain_with", None)
    said = []
    again = conserva.bias(three, TEXTS, GROUPS, out=tmp_path, swaps=0, progress=lambda *two: said.append(two))
    assert again == first
    assert (tmp_path / NAME).read_bytes() == lines
    assert said == [(8, 8)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"data": [*TEXTS[:2], "eastwood", *TEXTS[3:]]},
            "differs from the previous run in the same folder, in its first 8 texts",
        ),
        ({"data": TEXTS[:5]}, "differs from the previous run in the same folder, in its first 8 texts"),
        ({"groups": {"a": ["Eastwood"]}}, "differs in groups"),
        ({"ordinary": "keep"}, "differs in groups .*; ordinary"),
        ({"target": "negative - positive"}, "differs in target"),
        ({"method": "gi"}, "differs in method"),
    ],
)
def test_a_folder_of_another_study_is_refused(three: conserva.Text, tmp_path: Path, changes: dict, says: str) -> None:
    conserva.bias(three, TEXTS, GROUPS, out=tmp_path, swaps=0)
    given = {"data": TEXTS, "groups": GROUPS, "swaps": 0, **changes}
    with pytest.raises(Error, match=says):
        conserva.bias(three, out=tmp_path, **given)


def test_a_corpus_that_has_grown_is_read_on(three: conserva.Text, tmp_path: Path) -> None:
    conserva.bias(three, TEXTS[:4], GROUPS, out=tmp_path, swaps=0)
    grown = conserva.bias(three, TEXTS, GROUPS, out=tmp_path, swaps=0)
    at_once = conserva.bias(three, TEXTS, GROUPS, swaps=0)
    assert [(one.text, one.entity) for one in grown.mentions] == [(one.text, one.entity) for one in at_once.mentions]
    assert [one.relevance for one in grown.mentions] == pytest.approx(
        [one.relevance for one in at_once.mentions], rel=1e-4, abs=1e-7
    )
    assert grown.texts == len(TEXTS)
    assert grown.left_out == {"Will": 1}


def test_progress_counts_texts(three: conserva.Text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "AT_ONCE", 2)
    said = []
    conserva.bias(three, TEXTS, GROUPS, swaps=0, progress=lambda *two: said.append(two))
    assert said == [(3, 8), (5, 8), (8, 8), (8, 8)]
    said.clear()
    monkeypatch.setattr(collect, "AT_ONCE", 4)
    conserva.bias(three, iter(TEXTS), GROUPS, swaps=0, progress=lambda *two: said.append(two))
    assert said == [(5, 5), (8, 8)]


def test_what_is_left_out_is_counted_once(three: conserva.Text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "AT_ONCE", 2)
    found = conserva.bias(three, [TEXTS[5], *TEXTS], GROUPS, swaps=0)
    assert found.left_out == {"Will": 2}


def test_a_study_on_disk(study: BiasStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = save(study, tmp_path / "new" / "folder")
    assert [path.name for path in written] == ["bias.json", "mentions.parquet"]
    assert known(BiasStudy.load(written[0])) == known(study)
    rows = pyarrow.parquet.read_table(written[1]).to_pylist()
    assert [row["relevance"] for row in rows] == [one.relevance for one in study.mentions]
    assert [row["sentence"] for row in rows] == [study.sentences[one.text] for one in study.mentions]
    assert [row["label"] for row in rows] == [one.label for one in study.mentions]

    monkeypatch.setattr("conserva._util.extras.find_spec", lambda name: None)
    with pytest.raises(Error, match=r"pip install 'conserva\[data\]'"):
        save(study, tmp_path / "other")
    assert known(BiasStudy.load(tmp_path / "other" / "bias.json")) == known(study)


# Bad input.


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"groups": {}}, "is empty: give one or more"),
        ({"groups": {"a": ["Eastwood"], "b": ["eastwood"]}}, "'a' has no word of its own"),
        ({"groups": {"a": ["Fellini"]}}, r"None of the 8 text\(s\) of texts mentions a word of the groups: give other"),
        ({"groups": {"a": ["Will"]}}, r"except for 1 mention\(s\) that are left out, such as 'Will': .*keep-ordinary"),
        ({"data": iter(())}, r"None of the 0 text\(s\)"),
        ({"data": []}, "contains no texts"),
        ({"data": iter([TEXTS[0], 3])}, "Text 2 is 3"),
        ({"data": [("eastwood", "good"), ("denzel", "bad")]}, "'good' of row 1 is not one of the model's labels"),
        ({"data": [("eastwood", 0), ("denzel", 3)]}, "Label 3 of row 2 is out of range"),
        ({"target": "good - bad"}, "target label 'good' is not one of the model's labels"),
        ({"target": "positive"}, "is not a contrast of two classes"),
        ({"target": "positive - positive"}, "is not a contrast of two classes"),
        ({"target": 1}, "is not a contrast of two classes"),
        ({"target": None}, "3 classes: choose two"),
        ({"method": "magic"}, "method='magic' is unknown"),
        ({"level": 5}, "level=5 is not a significance level"),
        ({"swaps": -1}, "swaps=-1"),
        ({"batch_tokens": 0}, "batch_tokens=0"),
        ({"ordinary": "maybe"}, "ordinary='maybe' is unknown"),
        ({"task": "sentiment"}, "is not a task"),
    ],
)
def test_bad_input(three: conserva.Text, changes: dict, says: str) -> None:
    with pytest.raises(Error, match=says):
        conserva.bias(**{"task": three, "data": TEXTS, "groups": GROUPS, "swaps": 0, **changes})


def test_models_that_cannot_be_studied(task: conserva.Text) -> None:
    one_class = bert(vocab_size=len(task.tokenizer), id2label={0: "score"}, label2id={"score": 0})
    with pytest.raises(Error, match=r"one has 1 class\(es\)"):
        conserva.bias(conserva.Text(one_class, task.tokenizer, "one"), TEXTS, GROUPS)
    with pytest.raises(Error, match=r"takes graphs, .* give a text classifier"):
        conserva.bias(conserva.load("bace"), TEXTS, GROUPS)
