"""Labelled texts: every kind of source is read alike, and what cannot be read says why."""

import csv
import json
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import conserva
from conserva.datasets import Labelled, class_indices, read_labelled

DATA = Path(os.environ.get("CONSERVA_DATA", "no-folder-named-in-CONSERVA_DATA"))
TEXTS, NAMES = ("good film", "bad, long film"), ("pos", "neg")
LONG = "word " * 40_000  # beyond the standard library's limit for a CSV field


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def parquet(folder: Path, columns: dict[str, list], name: str = "a.parquet") -> Path:
    arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    writer.write_table(arrow.table(columns), folder / name)
    return folder / name


def refused(message: pytest.ExceptionInfo, *says: str) -> None:
    assert all(part in str(message.value) for part in says), str(message.value)
    assert "\n" not in str(message.value)


CSV = 'text,label\ngood film,pos\n"bad, long film",neg\n'
JSON_LINES = '{"text": "good film", "label": "pos"}\n{"label": "neg", "text": "bad, long film"}\n'


@pytest.mark.parametrize(
    ("name", "content"),
    {
        "csv": ("a.csv", CSV),
        "ending in capitals": ("a.CSV", CSV),
        "byte-order mark": ("a.csv", "\ufeff" + CSV),
        "windows line ends": ("a.csv", CSV.replace("\n", "\r\n")),
        "no end of line at the end": ("a.csv", CSV.rstrip()),
        "empty lines": ("a.csv", CSV.replace("\n", "\n\n")),
        "blanks in the header": ("a.csv", CSV.replace("text,label", "text, label")),
        "usual names in capitals": ("a.csv", CSV.replace("text,label", "Sentence,SENTIMENT")),
        "more columns": ("a.csv", 'id,label,text,note\n1,pos,good film,\n2,neg,"bad, long film",\n'),
        "one split": ("a.csv", 'text,label,split\ngood film,pos,dev\n"bad, long film",neg,dev\n'),
        "tsv": ("a.tsv", "text\tlabel\ngood film\tpos\nbad, long film\tneg\n"),
        "quoted tsv": ("a.tsv", 'text\tlabel\ngood film\tpos\n"bad, long film"\tneg\n'),
        "jsonl": ("a.jsonl", JSON_LINES),
        "ndjson, mark, windows line ends": ("a.ndjson", "\ufeff" + JSON_LINES.replace("\n", "\r\n")),
        "json": ("a.json", "[" + JSON_LINES.strip().replace("\n", ",\n") + "]"),
    }.values(),
)
def test_every_form_reads_alike(tmp_path: Path, name: str, content: str) -> None:
    path = written(tmp_path, name, content)
    assert read_labelled(path) == read_labelled(str(path)) == Labelled(TEXTS, NAMES, str(path))


@pytest.mark.parametrize("column", ["string", "dictionary"])
def test_parquet(tmp_path: Path, column: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    labels = arrow.array(NAMES) if column == "string" else arrow.array(NAMES).dictionary_encode()
    path = parquet(tmp_path, {"id": [1, 2], "label": labels, "text": list(TEXTS)})
    assert read_labelled(path) == Labelled(TEXTS, NAMES, str(path))


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.csv", 'text,label\n"two\nlines",1\n"say ""hi""",0\n', ("two\nlines", 'say "hi"')),
        ("a.csv", 'text,label\r\n"two\r\nlines",1\r\n', ("two\r\nlines",)),
        ("a.csv", f"text,label\n{LONG},1\n", (LONG,)),
        ("a.csv", "text,label\nnext\u2028line\x85end,1\n", ("next\u2028line\x85end",)),
        ("a.tsv", 'text\tlabel\n"a quote\t1\nin "the" text\t0\nends"\t1\n', ('"a quote', 'in "the" text', 'ends"')),
        ("a.tsv", 'text\tlabel\n"say ""hi"""\t1\n"two\nlines"\t0\n', ('say "hi"', "two\nlines")),
        ("a.tsv", 'text\n"two\nlines"\none "line"\n', ("two\nlines", 'one "line"')),
        ("a.jsonl", '{"text": "next\u2028line\x85end", "label": 1}\n\n', ("next\u2028line\x85end",)),
        ("a.jsonl", '{"text": " kept as it is ", "label": 1}', (" kept as it is ",)),
    ],
)
def test_texts_come_whole(tmp_path: Path, name: str, content: str, texts: tuple[str, ...]) -> None:
    limit = csv.field_size_limit()
    assert read_labelled(written(tmp_path, name, content)).texts == texts
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        (["1", "0"], (1, 0)),
        (["1", " 0 "], (1, 0)),
        (["1", "-1"], (1, -1)),
        ([1, "0"], (1, 0)),
        (["1", "one"], ("1", "one")),
        (["1", "²"], ("1", "²")),
        ([1.0, 0.0], (1, 0)),
        ([True, False], (1, 0)),
        ([True, "one"], (1, "one")),
        (["pos ", "neg"], ("pos", "neg")),
    ],
)
def test_labels_are_integers_where_all_are(tmp_path: Path, given: list, labels: tuple) -> None:
    lines = "\n".join(json.dumps({"text": "film", "label": label}) for label in given)
    read = read_labelled(written(tmp_path, "a.jsonl", lines)).labels
    assert read == labels
    assert [type(label) for label in read or ()] == [type(label) for label in labels]


def test_columns_are_named_or_found(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "text,review,label,class\nt,r,1,x\n")
    read = read_labelled(path, text="review", label="class")
    assert (read.texts, read.labels) == (("r",), ("x",))
    assert read_labelled(written(tmp_path, "b.csv", "text,stars\nt,5\n")).labels is None
    assert read_labelled(written(tmp_path, "b.csv", "text,stars\nt,5\n"), label="stars").labels == (5,)
    assert read_labelled(written(tmp_path, "c.csv", "Target,label\nt,5\n"), text="Target").labels == (5,)


def test_split_of_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "text,label,split\na,x,train\nb,1,dev\nc,0,dev\n,1,test\n")
    assert read_labelled(path, split="dev") == Labelled(("b", "c"), (1, 0), f"{path} (dev)")
    with pytest.raises(conserva.Error) as message:
        read_labelled(path)
    refused(message, "several splits", "split=", "'train', 'dev', 'test'")
    with pytest.raises(conserva.Error) as message:
        read_labelled(path, split="validation")
    refused(message, "split='validation'", "'train', 'dev', 'test'")
    with pytest.raises(conserva.Error) as message:
        read_labelled(path, split="test")
    refused(message, "row 4", "empty")
    with pytest.raises(conserva.Error) as message:
        read_labelled(written(tmp_path, "b.csv", CSV), split="dev")
    refused(message, "no column 'split'", "split='dev'")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    {
        "empty": ("a.csv", "", ["is empty"]),
        "blank lines only": ("a.csv", "\ufeff\n\n", ["is empty"]),
        "header only": ("a.csv", "text,label\n", ["no rows"]),
        "no JSON lines": ("a.jsonl", "\n", ["no rows"]),
        "empty list": ("a.json", "[]", ["no rows"]),
        "no column of texts": ("a.csv", "words,label\na,1\n", ["text=", "'words', 'label'"]),
        "two columns of texts": ("a.csv", "text,review,id\na,b,1\n", ["'text', 'review'", "text=", "'id'"]),
        "two columns of labels": ("a.csv", "text,label,class\na,1,2\n", ["'label', 'class'", "label="]),
        "one name twice": ("a.csv", "text,text\na,b\n", ["'text', 'text'", "rename"]),
        "empty text": ("a.csv", "text,label\na,1\n ,0\n", ["row 2", "empty"]),
        "number as text": ("a.jsonl", '{"text": "a"}\n{"text": 5}\n', ["row 2", "is 5", "not a string"]),
        "no text in one object": ("a.jsonl", '{"text": "a"}\n{"note": "b"}\n', ["row 2", "None"]),
        "half a character": ("a.jsonl", '{"text": "a \\ud83d"}', ["row 1", "surrogate"]),
        "too few fields": ("a.csv", 'text,label\n"a\nb",1\nc\n', ["row 2", "line 4", "1 field", "2 column"]),
        "too many fields": ("a.csv", "text,label\ngood, bad,1\n", ["row 1", "3 field", "quote"]),
        "too few fields, tabs": ("a.tsv", "text\tlabel\na\t1\nb\n", ["row 2", "'\\t'"]),
        "open quote": ("a.csv", 'text,label\n"a,1\nb,0\n', ["line 3", "quotes"]),
        "broken JSON line": ("a.jsonl", '{"text": "a"}\n\n{"text": \n', ["line 3", "not JSON"]),
        "JSON line that is no object": ("a.jsonl", '{"text": "a"}\n["b"]\n', ["line 2", "['b']", "object"]),
        "broken JSON": ("a.json", '[{"text": "a"},\n{"text" "b"}]', ["line 2", "not JSON"]),
        "JSON that is not a list": ("a.json", '{"data": []}', ["list of objects", ".jsonl"]),
        "JSON list of strings": ("a.json", '["a"]', ["list of objects"]),
        "JSON too deep": ("a.json", "[" * 200_000, ["cannot be read"]),
        "Latin-1": ("a.csv", "text,label\na,1\ncaf\xe9,0\n".encode("latin-1"), ["not UTF-8", "line 3"]),
        "UTF-16": ("a.jsonl", '{"text": "a"}'.encode("utf-16"), ["not UTF-8", "line 1"]),
        "empty label": ("a.csv", "text,label\na,1\nb,\n", ["row 2", "no label"]),
        "NaN in CSV": ("a.csv", "text,label\na,1\nb,NaN\n", ["row 2", "no label"]),
        "null label": ("a.jsonl", '{"text": "a", "label": null}', ["row 1", "no label"]),
        "NaN label": ("a.jsonl", '{"text": "a", "label": NaN}', ["row 1", "no label"]),
        "no label in one object": ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}', ["row 2", "no label"]),
        "half a label": ("a.jsonl", '{"text": "a", "label": 0.5}', ["row 1", "0.5"]),
        "two labels": ("a.jsonl", '{"text": "a", "label": [0, 1]}', ["row 1", "[0, 1]"]),
        "unknown ending": ("a.xlsx", "text", ["'.xlsx'", ".csv, .tsv, .jsonl, .ndjson, .json, .parquet"]),
        "empty parquet": ("a.parquet", "", ["is empty"]),
    }.values(),
)
def test_bad_files(tmp_path: Path, name: str, content: str | bytes, says: list[str]) -> None:
    path = written(tmp_path, name, content)
    with pytest.raises(conserva.Error) as message:
        read_labelled(path)
    refused(message, str(path), *says)


@pytest.mark.parametrize("option", ["text", "label"])
def test_named_column_that_is_not_there(tmp_path: Path, option: str) -> None:
    with pytest.raises(conserva.Error) as message:
        read_labelled(written(tmp_path, "a.csv", CSV), **{option: "Text"})
    refused(message, f"{option}='Text'", "'text', 'label'")


@pytest.mark.parametrize(
    "name", ["missing.csv", "missing.parquet", "missing.txt", "no/such/folder/file", "../up", "", "."]
)
def test_what_is_neither_file_nor_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(conserva.Error) as message:
        read_labelled(name)
    refused(message, repr(name))
    assert "conserva[data]" not in str(message.value)


def test_a_path_is_never_a_dataset(tmp_path: Path) -> None:
    with pytest.raises(conserva.Error, match="is neither a file nor a valid name"):
        read_labelled(tmp_path / "glue")
    with pytest.raises(conserva.Error, match="is neither a file nor a valid name"):
        read_labelled(Path("glue"))
    with pytest.raises(conserva.Error, match="is a folder"):
        read_labelled(tmp_path)
    with pytest.raises(conserva.Error, match="cannot be read"):
        read_labelled("a" * 5000)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_half_written_parquet(tmp_path: Path, part: float) -> None:
    path = parquet(tmp_path, {"text": [str(n) for n in range(1000)], "label": list(range(1000))})
    whole = path.read_bytes()
    path.write_bytes(whole[: max(4, int(part * len(whole)))])
    with pytest.raises(conserva.Error) as message:
        read_labelled(path)
    refused(message, str(path), "not a complete Parquet file")


def test_parquet_damaged_within(tmp_path: Path) -> None:
    # Schema and length, at the end, are whole: the damage shows only when a column is read.
    path = parquet(tmp_path, {"text": [str(n) for n in range(1000)]})
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    with pytest.raises(conserva.Error, match="not a complete Parquet file"):
        read_labelled(path)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"text": ["a", None]}, ["row 2", "None"]),
        ({"text": [b"a"]}, ["row 1", "b'a'"]),
        ({"text": ["a", "b"], "label": [1.0, float("nan")]}, ["row 2", "no label"]),
        ({"text": ["a", "b"], "label": [1, None]}, ["row 2", "no label"]),
        ({"words": ["a"], "label": [1]}, ["'words', 'label'"]),
        ({"text": []}, ["no rows"]),
    ],
)
def test_bad_parquet(tmp_path: Path, columns: dict[str, list], says: list[str]) -> None:
    with pytest.raises(conserva.Error) as message:
        read_labelled(parquet(tmp_path, columns))
    refused(message, *says)


@pytest.mark.parametrize(("module", "source"), [("pyarrow", "a.parquet"), ("datasets", "glue:sst2")])
def test_missing_extras_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, source: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    written(tmp_path, "a.parquet", "PAR1")
    with pytest.raises(conserva.Error) as message:
        read_labelled(source)
    refused(message, source, f"the package {module}:", "pip install 'conserva[data]'")


class Hub:
    """A stand-in for the `datasets` module: it notes what is asked for, and gives two rows."""

    def __init__(self, columns: dict[str, list] | Exception) -> None:
        self.columns, self.asked = columns, []

    def load_dataset(self, path: str, name: str | None = None, *, split: str | None = None) -> object:
        self.asked.append((path, name, split))
        if isinstance(self.columns, Exception):
            raise self.columns
        return Rows(self.columns)


class Rows(dict):
    column_names = property(lambda self: list(self))

    def __len__(self) -> int:
        return len(next(iter(self.values())))


@pytest.mark.parametrize(
    ("source", "split", "asked"),
    [
        ("imdb", None, ("imdb", None, "validation")),
        ("glue:sst2", None, ("glue", "sst2", "validation")),
        ("stanfordnlp/sst2", "test[:2]", ("stanfordnlp/sst2", None, "test[:2]")),
        ("someone/reviews-1.0", "train", ("someone/reviews-1.0", None, "train")),
        ("someone/reviews.en:default", "train", ("someone/reviews.en", "default", "train")),
    ],
)
def test_dataset_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, split: str | None, asked: tuple
) -> None:
    # A column `split` within a dataset is no matter: the hub has chosen the rows.
    hub = Hub({"sentence": list(TEXTS), "label": [1, 0], "split": ["a", "b"]})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", hub)
    assert read_labelled(source, split=split) == Labelled(TEXTS, (1, 0), f"{source} ({asked[2]})")
    assert hub.asked == [asked]


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (Hub(ValueError('Unknown split "validation".\nShould be one of [train]')), "Should be one of [train]"),
        (Hub(ConnectionError("no network")), "no network"),
        (SimpleNamespace(), "load_dataset"),  # a folder `datasets` at hand, imported in the package's place
    ],
)
def test_dataset_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", module)
    with pytest.raises(conserva.Error) as message:
        read_labelled("imdb")
    refused(message, "'imdb'", "split='validation'", says)


def test_take() -> None:
    whole = Labelled(tuple(map(str, range(100))), tuple(range(100)), "here")
    some = whole.take(10)
    assert len(some) == 10
    assert some == whole.take(10, seed=0) != whole.take(10, seed=1)
    assert some.labels == tuple(sorted(set(some.labels or ())))
    assert some.texts == tuple(map(str, some.labels or ()))
    assert whole.take(None) == whole.take(100) == whole.take(1000) == whole
    assert Labelled(whole.texts, None, "here").take(10) == Labelled(some.texts, None, "here")
    state = random.getstate()
    whole.take(5)
    assert random.getstate() == state
    for count in (0, -1):
        with pytest.raises(conserva.Error, match=f"count={count}"):
            whole.take(count)


KNOWN = {"negative": 0, "Positive": 1, "it": 2, "IT": 3}


@pytest.mark.parametrize(
    ("labels", "indices"),
    [([1, 0, 3], [1, 0, 3]), (["Positive", "POSITIVE", "negative"], [1, 1, 0]), (["it", "IT", 1], [2, 3, 1]), ([], [])],
)
def test_class_indices(labels: list[str | int], indices: list[int]) -> None:
    assert class_indices(labels, KNOWN, 4) == indices


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([0, 4], ["Label 4", "row 2", "0 to 3"]),
        ([-1], ["Label -1", "row 1"]),
        (["negative", "neutral"], ["'neutral'", "row 2", "'negative', 'Positive', 'it', 'IT'"]),
        (["It"], ["'It'", "row 1"]),  # two labels differ in case only, and this is neither
        (["1"], ["'1'", "row 1"]),
    ],
)
def test_unknown_labels(labels: list[str | int], says: list[str]) -> None:
    with pytest.raises(conserva.Error) as message:
        class_indices(labels, KNOWN, 4)
    refused(message, *says)


@pytest.mark.parametrize(
    ("name", "split", "rows", "classes"),
    [
        ("sst2/sst2_sentences", "test", 1821, 2),
        ("sst2/sst2_glue", "dev", 872, 2),
        ("tweeteval_emotion/tweeteval_emotion", "val", 374, 4),
        ("tweeteval_hate/tweeteval_hate", "test", 2970, 2),
        ("silicone_meld_s/silicone_meld_s", "dev", 1109, 3),
        ("silicone_sem/silicone_sem", "test", 878, 3),
    ],
)
def test_published_datasets(name: str, split: str, rows: int, classes: int) -> None:
    path = DATA / f"{name}.parquet"
    if not path.exists():
        pytest.skip(f"no {name}.parquet: set CONSERVA_DATA to the folder of datasets")
    pytest.importorskip("pyarrow")
    read = read_labelled(path, split=split)
    assert len(read) == rows
    assert set(class_indices(read.labels or (), {}, classes)) == set(range(classes))


def test_several_splits_are_joined_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "splits.csv"
    path.write_text("text,split\na,train\nb,dev\nc,test\nd,train\n", encoding="utf-8")
    assert read_labelled(path, split="test+train").texts == ("a", "c", "d")
    with pytest.raises(conserva.Error, match=r"no rows with split=.other.*or more as a\+b"):
        read_labelled(path, split="train+other")
