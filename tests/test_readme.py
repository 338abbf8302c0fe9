"""The README says what is true: its code runs, its list of model types is the one that is tested."""

import re
from pathlib import Path

import torch

from test_zoo import REFUSED, UNTESTED, WORKING

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_every_line_of_python_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    result, gap = names["result"], names["result"].ledger.gap  # type: ignore[attr-defined]
    assert torch.isfinite(gap).all()
    assert (result.scores()[1, 3:] == 0).all()  # type: ignore[attr-defined]
    assert names["R"].shape == (2, 5, 768)  # type: ignore[attr-defined]


def test_the_list_of_model_types_is_the_tested_one() -> None:
    listed = re.search(r"<!-- models -->(.*)<!-- /models -->", README, re.DOTALL)
    assert listed is not None
    works, _, refused = listed.group(1).partition("Refused")
    assert set(re.findall(r"`([^`]+)`", works)) == {specimen.model_type for specimen in WORKING}
    for model_type, reason in {**REFUSED, **UNTESTED}.items():
        assert f"`{model_type}`" in refused
        assert reason in refused
