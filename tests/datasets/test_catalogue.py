"""The paper's datasets: each trap in the published files is stepped around, and other files than those are refused."""

import os
import random
import re
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

import conserva
from conserva.datasets import DATASETS, Dataset, Labelled, catalogue, dataset
from conserva.datasets.catalogue import SPLITS
from conserva.datasets.cleaning import clean_text, contradictory, held_out, letters_and_digits

Rows = list[tuple[str, int]]


def small(name: str, rows: dict[str, Rows], **changes: object) -> Dataset:
    """Return a dataset of which these few rows are what was published."""
    whole = dataset(name)
    for split, its_rows in rows.items():
        labels = Counter(label for _, label in its_rows)
        counts = tuple(labels[index] for index in range(len(whole.labels)))
        changes[split] = replace(getattr(whole, split), counts=counts)
    if whole.held_out:
        changes["validation"] = changes["train"]
    return replace(whole, **changes)


def write(folder: Path, whole: Dataset, rows: dict[str, Rows]) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files: dict[str, list] = {}
    for split, its_rows in rows.items():
        origin = getattr(whole, split)
        files.setdefault(origin.file, []).extend((text, label, origin.rows) for text, label in its_rows)
    for file, lines in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        columns = dict(zip(("text", "label", "split"), map(list, zip(*lines, strict=True)), strict=True))
        parquet.write_table(arrow.table(columns), folder / file)


def pairs(read: Labelled) -> Rows:
    return list(zip(read.texts, read.labels or (), strict=True))


def refused(message: pytest.ExceptionInfo, *says: str) -> None:
    assert all(part in str(message.value) for part in says), str(message.value)
    assert "\n" not in str(message.value)


@pytest.fixture(autouse=True)
def no_folder_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONSERVA_DATA", raising=False)


DATA = os.environ.get("CONSERVA_DATA")
ROWS: dict[str, Rows] = {
    "train": [("good", 1), ("bad", 0), ("fine", 1)],
    "validation": [("not good", 0), ("lovely", 1)],
    "test": [("dull", 0), ("a joy", 1)],
}


# Rows.


@pytest.mark.parametrize(
    ("name", "rows", "train"),
    {
        "sst2: phrases that are sentences of validation or test": (
            "sst2",
            {
                "train": [("Not good !", 0), ("a -lrb- fine -rrb- film", 1), ("not", 0), ("a joy .", 1), ("good", 1)],
                "validation": [("not good .", 0), ("a ( fine ) film", 1)],
                "test": [("a joy", 1)],
            },
            [("not", 0), ("good", 1)],
        ),
        "sst2: phrases with both labels, but not repeats": (
            "sst2",
            ROWS | {"train": [("silly", 1), ("so", 0), ("silly", 0), ("so", 0), ("silly !", 1)]},
            [("so", 0), ("so", 0), ("silly !", 1)],
        ),
        "hate: empty texts, texts of the other splits": (
            "tweeteval-hate",
            {
                "train": [("", 0), ("one", 0), ("two", 1), ("One", 1), (" ", 0), ("three", 0)],
                "validation": [("one", 0), ("", 0)],
                "test": [("two", 0)],
            },
            [("One", 1), ("three", 0)],
        ),
        "sentiment: tweets with several labels": (
            "tweeteval-sentiment",
            ROWS | {"train": [("so", 0), ("so", 2), ("well", 1)]},
            [("well", 1)],
        ),
        "speech: repeats are speech": (
            "semaine",
            {"train": [("okay", 1), ("okay", 2), ("hi", 1)], "validation": [("okay", 1)], "test": [("hi", 2)]},
            [("okay", 1), ("okay", 2), ("hi", 1)],
        ),
    }.values(),
)
def test_train_is_apart_from_the_other_splits(tmp_path: Path, name: str, rows: dict[str, Rows], train: Rows) -> None:
    whole = small(name, rows)
    write(tmp_path, whole, rows)
    assert pairs(whole.read("train", tmp_path)) == train
    for split in ("validation", "test"):
        given = [(clean_text(text), label) for text, label in rows[split]]
        assert pairs(whole.read(split, tmp_path)) == [row for row in given if row[0]]


def reviews() -> dict[str, Rows]:
    train = [(f"{word} number {number}", label) for label, word in enumerate(("bad", "good")) for number in range(40)]
    train += [(f"{word} again", label) for label, word in enumerate(("bad", "good")) for _ in range(40)]
    return {"train": sorted(train, key=lambda row: row[1]), "test": [("bad number 7", 0), ("good number 3<br />", 1)]}


def test_validation_is_held_out_of_imdb(tmp_path: Path) -> None:
    rows = reviews()
    whole = small("imdb", rows, held_out=30)
    write(tmp_path, whole, rows)
    read = {split: pairs(whole.read(split, tmp_path)) for split in SPLITS}
    test = {text for text, _ in read["test"]}
    assert test == {"bad number 7", "good number 3"}
    assert Counter(label for _, label in read["validation"]) == {0: 30, 1: 30}
    # Together they are what was published, less what is in test; so no copy of a text is lost, or on both sides.
    assert sorted(read["train"] + read["validation"]) == sorted(row for row in rows["train"] if row[0] not in test)
    assert not set(read["train"]) & set(read["validation"])
    assert [row for row in rows["train"] if row in read["validation"]] == read["validation"]


def test_draw_is_the_same_in_any_order_of_the_rows(tmp_path: Path) -> None:
    rows = reviews()
    whole = small("imdb", rows, held_out=10)
    write(tmp_path, whole, rows)
    before = {split: sorted(pairs(whole.read(split, tmp_path))) for split in SPLITS}
    random.Random(1).shuffle(rows["train"])
    write(tmp_path, whole, rows)
    assert {split: sorted(pairs(whole.read(split, tmp_path))) for split in SPLITS} == before


# Where from.


def test_folder_is_given_or_named_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = small("sst2", ROWS)
    write(tmp_path / "one", whole, ROWS)
    other = ROWS | {"test": [("grey", 0), ("sun", 1)]}
    write(tmp_path / "other", whole, other)
    monkeypatch.setenv("CONSERVA_DATA", str(tmp_path / "one"))
    read = whole.read("test")
    assert pairs(read) == ROWS["test"]
    assert read.source == f"sst2 test, from {tmp_path / 'one' / 'sst2' / 'sst2_sentences.parquet'} (test)"
    assert whole.read("validation").source.endswith("sst2_glue.parquet (dev)")
    assert pairs(whole.read("test", tmp_path / "other")) == other["test"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pairs(whole.read("test", "~/other")) == other["test"]


class Columns(dict):
    column_names = property(lambda self: list(self))

    def __len__(self) -> int:
        return len(next(iter(self.values())))


class Hub:
    """A stand-in for the `datasets` module: it notes what is asked for, and gives the rows of that split."""

    def __init__(self, rows: dict[str, Rows], text: str, label: str, names: tuple[str, ...] = ()) -> None:
        self.rows, self.text, self.label, self.names, self.asked = rows, text, label, names, []

    def load_dataset(self, path: str, name: str | None = None, *, split: str | None = None) -> object:
        self.asked.append((path, name, split))
        texts, labels = zip(*self.rows[split or ""], strict=True)
        given = [self.names[label] for label in labels] if self.names else list(labels)
        return Columns({self.text: list(texts), self.label: given, "Sentiment": given})


@pytest.mark.parametrize(
    ("name", "columns", "asked"),
    [
        ("sst2", ("sentence", "label"), [("nyu-mll/glue", "sst2", "train"), ("nyu-mll/glue", "sst2", "validation")]),
        ("imdb", ("text", "label"), [("stanfordnlp/imdb", None, "train"), ("stanfordnlp/imdb", None, "test")]),
        *(
            (f"tweeteval-{task}", ("text", "label"), [("cardiffnlp/tweet_eval", task, split) for split in SPLITS])
            for task in ("emotion", "hate", "sentiment")
        ),
        ("meld-s", ("Utterance", "Label"), [("eusip/silicone", "meld_s", "train")]),
        ("semaine", ("Utterance", "Label"), [("eusip/silicone", "sem", "train")]),
    ],
)
def test_hub_is_read_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, columns: tuple[str, str], asked: list
) -> None:
    hub = Hub(ROWS, *columns)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", hub)
    whole = small(name, {split: rows for split, rows in ROWS.items() if split != "validation" or name != "imdb"})
    if name == "sst2":  # its test comes from elsewhere, with other columns
        whole = replace(whole, test=replace(whole.test, hub_columns=columns))
        asked = [*asked, ("SetFit/sst2", None, "test")]
    read = whole.read("train")
    assert hub.asked == asked
    assert pairs(read) == ([] if name == "imdb" else ROWS["train"])  # IMDB's few are all held out
    assert read.source == f"{name} train, from {whole.train.hub} (train)"
    assert DATASETS["sst2"].test.hub_columns == ("text", "label")


def test_names_of_labels_become_indices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {split: [("no", 0), ("so", 1), ("yes", 2)] for split in SPLITS}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", Hub(rows, "Utterance", "Label", ("Negative", "Neutral", "Positive")))
    assert pairs(small("semaine", rows).read("validation")) == rows["validation"]
    monkeypatch.setitem(sys.modules, "datasets", Hub(rows, "Utterance", "Label", ("Negative", "Other", "Positive")))
    with pytest.raises(conserva.Error) as message:
        small("semaine", rows).read("validation")
    refused(message, "eusip/silicone:sem", "found 3 (1 negative, 0 neutral, 1 positive, 1 of other labels)")


def test_order_of_labels_on_the_hub_is_held_against_the_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turned = {split: [(text, 1 - label) for text, label in rows] for split, rows in ROWS.items()}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", Hub(turned, "text", "label"))
    with pytest.raises(conserva.Error, match="expected 3 rows"):
        small("tweeteval-hate", ROWS).read("train")


@pytest.mark.parametrize("module", [None, SimpleNamespace()])
def test_hub_that_cannot_be_had_leaves_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", module)
    with pytest.raises(conserva.Error) as message:
        dataset("meld-s").read("test")
    refused(message, "'eusip/silicone:meld_s'", "Or set CONSERVA_DATA", "'silicone_meld_s/silicone_meld_s.parquet'")


# What is refused.


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sst-2", ["'sst-2'", "Did you mean 'sst2'?"]),
        ("IMDB", ["'IMDB'", "Did you mean 'imdb'?"]),
        ("tweeteval_hate", ["Did you mean 'tweeteval-hate'?"]),
        (
            "MNIST!?",
            ["Choose one of sst2, imdb, tweeteval-emotion, tweeteval-hate, tweeteval-sentiment, meld-s, semaine."],
        ),
    ],
)
def test_unknown_dataset(name: str, says: list[str]) -> None:
    with pytest.raises(conserva.Error) as message:
        dataset(name)
    refused(message, *says)


def test_unknown_split(tmp_path: Path) -> None:
    with pytest.raises(conserva.Error) as message:
        dataset("meld-s").read("dev", tmp_path)
    refused(message, "split='dev'", "meld-s", "train, validation, test")


def test_file_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSERVA_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(conserva.Error) as message:
        dataset("imdb").read("test")
    refused(message, str(tmp_path / "nowhere"), "'imdb/imdb.parquet'", "CONSERVA_DATA", "'stanfordnlp/imdb'")
    # Train needs the other splits too: their file is asked for by name.
    write(tmp_path, small("sst2", ROWS), {split: ROWS[split] for split in ("train", "validation")})
    with pytest.raises(conserva.Error, match=re.escape("sst2/sst2_sentences.parquet")):
        small("sst2", ROWS).read("train", tmp_path)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([("good", 1), ("bad", 0)], "found 2 (1 negative, 1 positive, 0 of other labels)"),
        ([("good", 1), ("bad", 0), ("fine", 0)], "found 3 (2 negative, 1 positive, 0 of other labels)"),
        ([("good", 1), ("bad", 0), ("fine", 1), ("so", -1)], "found 4 (1 negative, 2 positive, 1 of other labels)"),
    ],
)
def test_counts_that_are_not_those_published(tmp_path: Path, found: Rows, says: str) -> None:
    whole = small("sst2", ROWS)
    write(tmp_path, whole, ROWS | {"train": found})
    with pytest.raises(conserva.Error) as message:
        whole.read("train", tmp_path)
    refused(message, "sst2 train", "expected 3 rows (1 negative, 2 positive)", says, "read_labelled")
    assert len(whole.read("validation", tmp_path)) == 2


def test_counts_of_the_splits_that_train_is_held_against(tmp_path: Path) -> None:
    whole = small("tweeteval-hate", ROWS)
    write(tmp_path, whole, ROWS | {"test": [("dull", 0)]})
    with pytest.raises(conserva.Error, match=r"tweeteval-hate test, from .* expected 2 rows"):
        whole.read("train", tmp_path)


def test_half_written_file(tmp_path: Path) -> None:
    whole = small("semaine", ROWS)
    write(tmp_path, whole, ROWS)
    path = tmp_path / whole.train.file
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(conserva.Error) as message:
        whole.read("train", tmp_path)
    refused(message, str(path), "not a complete Parquet file")


# The table.


def test_table_of_datasets() -> None:
    titles = ["SST-2", "IMDB", "T-Emotions", "T-Hate", "T-Sentiment", "Meld-S", "Semaine"]
    assert [one.title for one in DATASETS.values()] == titles
    for name, one in DATASETS.items():
        assert one is dataset(name)
        assert one.name == name
        hash(one)
        for split in SPLITS:
            assert len(getattr(one, split).counts) == len(one.labels)


# The published files, by the counts of each label after cleaning.
CLEANED = {
    "sst2": ((29766, 37558), (428, 444), (912, 909)),
    "imdb": ((11155, 11222), (1250, 1250), (12500, 12500)),
    "tweeteval-emotion": ((1400, 708, 294, 855), (160, 97, 28, 89), (558, 358, 123, 382)),
    "tweeteval-hate": ((5200, 3555), (572, 427), (1718, 1252)),
    "tweeteval-sentiment": ((7092, 20670, 17847), (312, 869, 819), (3972, 5937, 2375)),
    "meld-s": ((2945, 4710, 2334), (406, 470, 233), (833, 1256, 521)),
    "semaine": ((844, 2291, 1129), (92, 261, 132), (158, 488, 232)),
}


@cache
def published(name: str, split: str) -> Labelled:
    if not DATA:
        pytest.skip("no folder of datasets: set CONSERVA_DATA")
    pytest.importorskip("pyarrow")
    return dataset(name).read(split, DATA)


def test_documented_rows_are_those_tested() -> None:
    for name, counts in CLEANED.items():
        rows = " | ".join(f"{sum(its_counts):,}" for its_counts in counts)
        assert f"| {name} | {rows} |" in (catalogue.__doc__ or "")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", CLEANED)
def test_published_split(name: str, split: str) -> None:
    read = published(name, split)
    labels = Counter(read.labels)
    assert tuple(labels[index] for index in range(len(labels))) == CLEANED[name][SPLITS.index(split)]
    assert all(text and text == text.strip() for text in read.texts)
    assert not re.search("[\x80-\x9f]|<br|-[lr][rs]b-", "\n".join(read.texts))
    assert not re.search("â€|ðŸ", "\n".join(read.texts))


@pytest.mark.parametrize("name", [name for name, one in DATASETS.items() if one.compared])
def test_published_splits_are_apart(name: str) -> None:
    compared = letters_and_digits if name == "sst2" else str
    train, validation, test = ({compared(text) for text in published(name, split).texts} for split in SPLITS)
    assert not train & validation
    assert not train & test
    assert not validation & test
    assert not contradictory(pairs(published(name, "train")))


def test_published_reviews_are_drawn_the_same_in_any_order() -> None:
    rows = pairs(published("imdb", "train")) + pairs(published("imdb", "validation"))
    random.Random(1).shuffle(rows)
    assert held_out(rows, dataset("imdb").held_out) == set(published("imdb", "validation").texts)


def test_published_train_loses_no_more_than_its_faults() -> None:
    lost = {
        name: sum(one.train.counts) - len(published(name, "train")) - one.held_out * len(one.labels)
        for name, one in DATASETS.items()
    }
    # Sentences of the other splits, then rows with both labels. Hate: 7 are empty; sentiment: 6 have several labels.
    assert lost == {
        "sst2": 15 + 10,
        "imdb": 123,
        "tweeteval-emotion": 0,
        "tweeteval-hate": 7 + 235 + 3,
        "tweeteval-sentiment": 6,
        "meld-s": 0,
        "semaine": 0,
    }
