"""Runs of the benchmark of evidence: going on where one was, its tables, and its command."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conserva
from conserva.errors import NotApplicable
from conserva.tasks import Causal
from evidence_files import KNOWN, part, write_files
from language import byte_tokenizer, causal, language_model


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return part("item").Source(write_files(tmp_path_factory.mktemp("llm")), byte_tokenizer(), lengths=(500, 700))


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let every item count as answered; return the keys that were asked for."""
    asked: list[str] = []

    def answers(_: Any, one: Any) -> list[bool]:
        asked.append(one.item.key)
        return [True] * len(one.answer)

    monkeypatch.setattr(part("run"), "answers", answers)
    return asked


def _run(task: Causal, source: Any, path: Path, wanted: list[str], **changes: Any) -> tuple[list[str], Any]:
    run, settings = part("run"), part("run").Settings(ablations=4, seed=changes.pop("seed", 0))
    journal = part("run").Journal(path, {"seed": settings.seed}, "a benchmark of evidence", "file")
    try:
        one = run.Run(
            task, settings, run.Amount(**{"items": 3, "tries": 9, "timed": 1, "tokens": 400, **changes}), journal
        )
        return one.kind("tracking", source, "validation", wanted), one.found
    finally:
        journal.close()


@pytest.fixture(scope="module")
def long_task() -> Causal:
    return Causal(language_model(max_position_embeddings=400), byte_tokenizer())


def test_a_run_goes_on_where_it_was(
    long_task: Causal, source: Any, answered: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    methods = part("methods")
    really, made = methods.scores, []

    def stops_at_the_fourth(task: Any, one: Any, method: str, *rest: Any) -> Any:
        made.append((one.item.key, method))
        if len(made) == 4:
            raise KeyboardInterrupt
        return really(task, one, method, *rest)

    monkeypatch.setattr(methods, "scores", stops_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        _run(long_task, source, tmp_path / "some.jsonl", ["exact", "random"])
    keys, found = _run(long_task, source, tmp_path / "some.jsonl", ["exact", "random"])
    wanted = [(key, method) for key in keys for method in ("exact", "random")]
    assert made == [*wanted[:4], *wanted[3:]]
    assert answered == keys  # each was asked for once
    assert list(found.rows) == wanted
    anew = _run(long_task, source, tmp_path / "anew.jsonl", ["exact", "random"])[1]
    assert [_untimed(row) for row in found.rows.values()] == [_untimed(row) for row in anew.rows.values()]
    monkeypatch.setattr(methods, "scores", lambda *given: made.append((given[1].item.key, given[2])) or really(*given))
    made.clear()
    more, found = _run(long_task, source, tmp_path / "some.jsonl", ["random", "gi"], items=4)
    assert more[:3] == keys
    assert made == [*((key, "gi") for key in keys), (more[3], "random"), (more[3], "gi")]
    assert [("cost" in found.rows[key, "gi"]) for key in more] == [True, False, False, False]


def _untimed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "cost"}


def test_only_what_the_model_says_counts(long_task: Causal, source: Any, tmp_path: Path) -> None:
    keys, found = _run(long_task, source, tmp_path / "some.jsonl", ["random"], tries=5)
    assert keys == []
    assert len(found.tried) == 5
    assert not any(row["right"] for row in found.tried.values())
    assert _run(long_task, source, tmp_path / "short.jsonl", ["random"], tokens=20, tries=0)[1].tried == {}


def test_scores_that_are_not_finite_are_counted_and_worth_nothing(
    long_task: Causal, source: Any, answered: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    really = part("methods").scores

    def broken(task: Any, one: Any, method: str, *rest: Any) -> Any:
        if method == "rollout":
            raise NotApplicable("It is for another kind of model.")
        calls.append(method)
        scores = really(task, one, method, *rest)
        return scores * np.nan if method == "gi" and calls.count("gi") > 1 else scores

    calls: list[str] = []
    monkeypatch.setattr(part("methods"), "scores", broken)
    wanted = ["gi", "exact", "rollout"]
    keys, found = _run(long_task, source, tmp_path / "some.jsonl", wanted)
    summary = part("summary")
    assert summary.values(found, keys, "gi", "document token", "ap")[1:] == [0, 0]
    text = summary.tables(found, {"tracking": keys}, wanted, ["hops", "length"])
    assert "| tracking | 3 | 3 | 1.00 | 3 | 3 |" in text
    assert re.search(r"^\| gi .*\| 2 \|$", text, re.M)
    assert re.search(r"^\| exact .*\| 0 \|$", text, re.M)
    share = np.mean([found.tried[key]["chance"]["document token"] for key in keys])
    assert f"A random token is evidence in {share:.2f} of cases" in text
    assert text.count("rollout") == 1
    assert "Not measured: rollout. It is for another kind of model." in text
    hops = [found.tried[key]["labels"]["hops"] for key in keys]
    assert "".join(f" | {one} ({hops.count(one)})" for one in sorted(set(hops))) in text
    assert "by length" not in text


def test_differences_are_to_the_best_method() -> None:
    compared = part("summary").compared
    means, less = compared({"a": [0.0, 1.0, 0.0], "b": [1.0, 1.0, 1.0], "c": [0.5, 1.0, 0.5]}, 0)
    assert [one.mean for one in means.values()] == pytest.approx([1 / 3, 1, 2 / 3])
    assert (less["b"].low, less["b"].high) == (0, 0)
    assert less["a"].mean == pytest.approx(-2 / 3)
    assert less["c"].low < less["c"].mean < less["c"].high <= 0


def test_the_command_prints_and_goes_on(
    source: Any, answered: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    language_model().save_pretrained(tmp_path / "tiny")
    byte_tokenizer().save_pretrained(tmp_path / "tiny")
    chosen = ["--model", str(tmp_path / "tiny"), "--data", str(source.data), "--kinds", "squad,known", "--out"]
    chosen += [str(tmp_path / "out.jsonl"), "--methods", "gi,leave-one-out", "--items", "1", "--ablations", "3"]
    splits = {part("item").Item("known", "", "", (), (0, 0), row["subject"]).split for row in KNOWN}
    for split in splits:
        part("__main__").main([*chosen, "--split", split, "--out", str(tmp_path / f"{split}.jsonl")])
    printed = capsys.readouterr().out
    assert "## known, 1 items" in printed
    assert re.search(r"^\| leave-one-out \| \d\.\d\d \[", printed, re.M)
    assert len(answered) == len(set(answered)) > 0
    split = splits.pop()
    again = [*chosen, "--split", split, "--out", str(tmp_path / f"{split}.jsonl")]
    before = len(answered)
    part("__main__").main([*again, "--table", str(tmp_path / "table.md")])
    assert len(answered) == before
    assert (tmp_path / "table.md").read_text(encoding="utf-8") in capsys.readouterr().out
    with pytest.raises(conserva.Error, match="differs in seed"):
        part("__main__").main([*again, "--seed", "1"])


def test_what_is_unknown_is_refused_before_anything_runs() -> None:
    task = causal()
    check = part("run").checked
    with pytest.raises(conserva.Error, match="kind='squid' is unknown"):
        check(task, ["squid"], [])
    with pytest.raises(conserva.Error, match="exakt"):
        check(task, ["squad"], ["leave-one-out", "exakt"])
    assert check(task, ["squad"], ["leave-one-out", "exact"]) is task
