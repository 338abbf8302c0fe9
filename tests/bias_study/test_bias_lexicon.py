"""Groups of words: given in every way there is, shared words, ordinary words, lists that cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conserva import Error
from conserva.bias_study.lexicon import AMBIGUOUS, lexicon_of, ordinary_words


def group_of(lexicon, name: str) -> str | None:
    return next(entry.group for entry in lexicon.entries if entry.name == name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "female.txt").write_text("Ada\r\nMary \n\nRobin\n", encoding="utf-8")
    (tmp_path / "male.txt").write_text("\ufeffJohn\nRobin\n", encoding="utf-8")
    (tmp_path / "README").write_text("no group\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "given",
    {
        "words": lambda folder: {"female": ["Ada", "Mary", "Robin"], "male": ("John", "Robin")},
        "files by name": lambda folder: {"female": folder / "female.txt", "male": str(folder / "male.txt")},
        "files": lambda folder: [folder / "female.txt", str(folder / "male.txt")],
        "a folder": lambda folder: folder,
        "a folder, as text": str,
    }.values(),
)
def test_groups_are_the_same_however_they_are_given(folder: Path, given) -> None:
    found = lexicon_of(given(folder))
    assert found.groups == ("female", "male", AMBIGUOUS)
    assert found.sizes == {"female": 2, "male": 1, AMBIGUOUS: 1}
    assert {entry.name: entry.group for entry in found.entries} == {
        "Ada": "female",
        "Mary": "female",
        "Robin": AMBIGUOUS,
        "John": "male",
    }
    assert found.fingerprint == lexicon_of(folder).fingerprint


def test_the_fingerprint_tells_groups_apart() -> None:
    prints = [
        lexicon_of(groups, ordinary=ordinary, ambiguous=ambiguous).fingerprint
        for groups, ordinary, ambiguous in (
            ({"a": ["Will", "x"], "b": ["y", "x"]}, "skip", "own"),
            ({"a": ["Will", "x"], "b": ["y", "x"]}, "keep", "own"),
            ({"a": ["Will", "x"], "b": ["y", "x"]}, "skip", "skip"),
            ({"b": ["Will", "x"], "a": ["y", "x"]}, "skip", "own"),
            ({"a": ["Will", "x"], "b": ["z", "x"]}, "skip", "own"),
        )
    ]
    assert len(set(prints)) == len(prints)


def test_names_are_the_lists_in_the_folder_of_datasets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "names").mkdir()
    for name in ("female.txt", "male.txt", "README"):
        (folder / name).rename(folder / "names" / name)
    monkeypatch.setenv("CONSERVA_DATA", str(folder))
    assert lexicon_of("names").sizes == {"female": 2, "male": 1, AMBIGUOUS: 1}
    monkeypatch.delenv("CONSERVA_DATA")
    with pytest.raises(Error, match="CONSERVA_DATA"):
        lexicon_of("names")


def test_the_published_lists_of_names() -> None:
    if not os.environ.get("CONSERVA_DATA"):
        pytest.skip("CONSERVA_DATA names no folder of datasets")
    found = lexicon_of("names")
    assert found.sizes[AMBIGUOUS] == 365
    assert (group_of(found, "Mary"), group_of(found, "John"), group_of(found, "Leslie")) == (
        "female",
        "male",
        AMBIGUOUS,
    )


def test_shared_words_may_be_left_out() -> None:
    found = lexicon_of({"a": ["x", "y"], "b": ["Y", "z"]}, ambiguous="skip")
    assert found.groups == ("a", "b")
    assert group_of(found, "y") is None
    assert found.sizes == {"a": 1, "b": 1}


def test_a_word_listed_twice_counts_once() -> None:
    found = lexicon_of({"a": ["Ada", "Ada", "Jo  Ann", "Jo Ann", "JoAnn", "Joann", "Jose\u0301", "Jos\u00e9"]})
    assert [entry.name for entry in found.entries] == ["Ada", "Jo Ann", "JoAnn", "Jose\u0301"]


@pytest.mark.parametrize(
    ("name", "doubt"),
    [
        ("Will", "without a capital"),
        ("Grace", "without a capital"),
        ("Mark", "without a capital"),
        ("WILL", "without a capital"),
        ("French", "always"),
        ("June", "always"),
        ("John", "never"),
        ("Will Smith", "never"),
        ("will", "never"),  # who lists the word means the word
    ],
)
def test_ordinary_words(name: str, doubt: str) -> None:
    assert lexicon_of({"a": [name]}).entries[0].doubt == doubt
    assert lexicon_of({"a": [name]}, ordinary="keep").entries[0].doubt == "never"


def test_the_list_of_ordinary_words_has_words_only() -> None:
    found = ordinary_words()
    assert 300 < len(found) < 600
    assert all(word.isalpha() and word == word.casefold() for word in found)


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ({}, "is empty: give one or more"),
        ([], "is empty: give one or more"),
        (None, "neither a mapping"),
        (3, "neither a mapping"),
        ({"a": []}, "Group 'a' is"),
        ({"a": None}, "Group 'a' is None"),
        ({"a": ["x", 3]}, "has 3 among its words"),
        ({"a": ["--"]}, "no letter and no digit"),
        ({"a": ["x", "y"], "b": ["Y", "x"]}, "'a' has no word of its own: all 2 are in 'b'"),
        ({"a": ["x", "y", "z"], "b": ["x"], "c": ["y"]}, "'b' has no word of its own: all 1 are in 'a'"),
        ({"a": ["Grace", "grace"]}, "'Grace' and 'grace'"),
        ({"ambiguous": ["x"]}, "rename it"),
        ("no/such/folder", "cannot be read: No such file"),
        ({"a": Path("no-such-file.txt")}, "cannot be read: No such file"),
    ],
)
def test_groups_that_cannot_be_used(groups, says: str) -> None:
    with pytest.raises(Error, match=says):
        lexicon_of(groups)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"without a \.txt file"):
        lexicon_of(tmp_path)
    empty, binary = tmp_path / "empty.txt", tmp_path / "binary.txt"
    empty.write_text(" \n\n", encoding="utf-8")
    binary.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(Error, match=r"empty\.txt' is empty"):
        lexicon_of([empty])
    with pytest.raises(Error, match=r"binary\.txt' is not UTF-8"):
        lexicon_of({"a": binary})
    other = tmp_path / "other"
    other.mkdir()
    for folder in (tmp_path, other):
        (folder / "a.txt").write_text("x\n", encoding="utf-8")
    with pytest.raises(Error, match="Two files of groups are called 'a'"):
        lexicon_of([tmp_path / "a.txt", other / "a.txt"])


@pytest.mark.parametrize("option", ["ordinary", "ambiguous"])
def test_unknown_options(option: str) -> None:
    with pytest.raises(Error, match=f"{option}='perhaps' is unknown: choose"):
        lexicon_of({"a": ["x"]}, **{option: "perhaps"})
