"""Threads that share a tokenizer get their texts as each of them asked for."""

import copy
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import conserva
import tiny_heads

LONG = "a gorgeous film " * 30


@pytest.mark.parametrize("kind", ["Text", "Question"])
def test_another_thread_does_not_decide_about_truncation(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = copy.deepcopy(tiny_heads.tokenizer())
    heads = {"Text": "AutoModelForSequenceClassification", "Question": "AutoModelForQuestionAnswering"}
    network = tiny_heads.model("bert", heads[kind], pad_token_id=tokenizer.pad_token_id, max_position_embeddings=40)
    task = getattr(conserva, kind)(network, tokenizer, kind)
    given = LONG if kind == "Text" else ("a film", LONG)
    truncated = len(task.encode_all([given], truncate=True)[0])
    setting, started = type(tokenizer).set_truncation_and_padding, threading.Barrier(2)

    def slow(*args: Any, **options: Any) -> None:
        setting(*args, **options)
        time.sleep(0.05)  # here the other thread may set its own

    monkeypatch.setattr(type(tokenizer), "set_truncation_and_padding", slow)

    def length(truncate: bool) -> int | str:
        started.wait()
        try:
            return len(task.encode_all([given], truncate=truncate)[0])
        except conserva.Error as error:
            return str(error)

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(length, (True, False))
    assert first == truncated
    assert "truncate it with truncate=True" in str(second)
