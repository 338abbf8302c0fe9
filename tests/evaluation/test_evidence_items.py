"""The items of the benchmark of evidence: where the evidence stands, and which split they are in."""

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from evidence_files import part, write_files
from language import byte_tokenizer

GENERATED = ("planted", "tracking", "injected")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return part("item").Source(write_files(tmp_path_factory.mktemp("llm")), byte_tokenizer(), lengths=(500, 700))


def _items(kind: str, source: Any, count: int = 24) -> list[Any]:
    return list(islice(part("kinds").KINDS[kind](source), count))


def _said(item: Any) -> list[str]:
    return [item.prompt[start:end] for start, end in item.evidence]


def test_evidence_of_rows_stands_where_it_is_said_to(source: Any) -> None:
    found = {item.answer: item for item in _items("squad", source)}
    assert {answer: _said(item) for answer, item in found.items()} == {"France": ["France"], "Rome": ["Rome"]}
    assert found["Rome"].prompt == "Rome is in Italy.\n\nQuestion: What is in Italy?\nAnswer (in a few words):"
    assert [_said(item) for item in sorted(_items("known", source), key=lambda item: item.answer)] == [
        ["Rome"],
        ["France"],
    ]
    found = {item.answer: item for item in _items("ioi", source)}
    assert found["Ann"].evidence == ((5, 8),)  # and not in Anna
    assert _said(found["Bob"]) == ["Bob"]


@pytest.mark.parametrize("kind", GENERATED)
def test_generated_items_are_those_of_their_seed(kind: str, source: Any) -> None:
    items = _items(kind, source)
    assert items == _items(kind, source)
    other = part("item").Source(source.data, source.tokenizer, 1, source.lengths)
    assert not {item.prompt for item in items} & {item.prompt for item in _items(kind, other)}
    for item in items:
        assert item.prompt == item.prompt.strip()
        assert all(item.document[0] <= start < end <= item.document[1] for start, end in item.evidence)
        if kind == "planted":
            assert _said(item) == [item.answer]
        elif kind == "injected":
            assert len(_said(item)) == 1
            assert re.search(rf"\b{item.answer}[.!]$", _said(item)[0])
            assert item.prompt.count(item.answer) == 1
    assert {item.split for item in items} == {"validation", "test"}
    depths = [item.labels["depth"] for item in items]
    assert min(depths) < 0.2
    assert kind == "tracking" or max(depths) > 0.8


def test_a_chain_leads_from_the_question_to_the_answer(source: Any) -> None:
    sizes = set()
    for item in _items("tracking", source):
        text = item.prompt[slice(*item.document)]
        statements = dict(statement.rstrip(".").split(" = ") for statement in re.findall(r"\w+ = \w+\.", text))
        assert len(statements) == (item.labels["hops"] + 1) * item.labels["chains"]
        value = re.search(r"value of (\w)\?", item.prompt)[1]  # type: ignore[index]
        followed = []
        while value in statements:
            followed.append(f"{value} = {statements[value]}.")
            value = statements[value]
        assert value == item.answer
        assert _said(item) == followed[::-1]
        for name, before in statements.items():  # nothing is used before it has a value
            assert before.isdigit() or text.index(f"{before} = ") < text.index(f"{name} = ")
        sizes.add((item.labels["hops"], item.labels["chains"]))
    assert sizes == {(hops, chains) for hops in (1, 2, 3) for chains in (2, 3)}


@pytest.mark.parametrize("kind", ["squad", *GENERATED])
def test_splits_have_no_item_in_common(kind: str, source: Any) -> None:
    item, kinds = part("item"), part("kinds").KINDS

    def split(name: str) -> list[Any]:
        return list(item.of_split(islice(kinds[kind](source), 24), name))

    validation, test = split("validation"), split("test")
    assert len(validation) + len(test) == len({one.key for one in _items(kind, source)})
    assert not {one.group for one in validation} & {one.group for one in test}


def test_a_split_depends_on_the_content_alone() -> None:
    item = part("item")
    made = [item.Item("known", "Rome is in", "Italy", ((0, 4),), (0, 10), group=group) for group in "abcd"]
    assert [one.split for one in made] == ["test", "test", "validation", "validation"]  # of this and every version
    assert len({one.key for one in made}) == 1
    assert [one.prompt for one in item.of_split(iter(made), "test")] == ["Rome is in"]  # each item once


def test_rows_keep_their_order_when_others_are_added(tmp_path: Path) -> None:
    item = part("item")
    rows = [json.dumps({"number": number}) for number in range(30)]
    (tmp_path / "few").write_text("\n".join(rows[:20]), encoding="utf-8")
    (tmp_path / "all").write_text("\n".join(rows), encoding="utf-8")
    few, every = (item.Source(tmp_path, None).rows(name) for name in ("few", "all"))
    assert few == [row for row in every if row["number"] < 20]
    assert few != sorted(few, key=lambda row: row["number"])
    assert few != item.Source(tmp_path, None, seed=1).rows("few")
