"""What every test starts from: no hub, one thread, fixed seeds."""

import gc
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also in the processes that tests start
if shutil.which("nvidia-smi") is None:  # kernels run in Triton's interpreter, which must be known before Triton is
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Some virtual machines announce AMX and do not run it: bfloat16 products would end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from markupsafe import Markup

from browser import chromium, pages  # noqa: F401

torch.set_num_threads(1)

# Otherwise each of the many interpreters that tests start compiles the package anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let all tests of a model type of the zoo follow each other: they share its models (`zoo_types.shared`)."""

    def model_type(item: pytest.Item) -> str:
        specimen = getattr(item, "callspec", None) and item.callspec.params.get("specimen")  # type: ignore[attr-defined]
        return specimen.model_type if specimen else ""

    items.sort(key=model_type)


def pytest_collection_finish() -> None:
    """Leave the libraries, which stay, out of every later collection of garbage."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # without the stack that `torch.manual_seed` writes down for a GPU that may come
        torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["CONSERVA_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def few_resamples() -> Iterator[None]:
    """Bootstrap with fewer resamples, still in two blocks: 10,000 take most of the time of a small run."""
    from conserva.evaluation.statistics import Bootstrap

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bootstrap.__init__, "__defaults__", (0, 600))
        yield


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the drawings of report pages empty: they take most of the time that a page takes."""
    from conserva.views import audit_page, bias_page, evaluation_page
    from conserva.views.report_figure import ReportFigure

    def undrawn(draw: object, caption: str, *results: object) -> ReportFigure:
        return ReportFigure(Markup(), Markup(), caption)

    for module in (audit_page, bias_page, evaluation_page):
        monkeypatch.setattr(module, "report_figure", undrawn)


@pytest.fixture
def figures_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw each figure of report pages once in a test that makes the same page several times."""
    from conserva.views import audit_page, bias_page, evaluation_page
    from conserva.views.report_figure import ReportFigure, report_figure

    drawn: dict[tuple[object, str, bytes], ReportFigure] = {}

    def once(draw: Callable[..., Markup], caption: str, *results: object) -> ReportFigure:
        key = (draw, caption, pickle.dumps(results))
        if key not in drawn:
            drawn[key] = report_figure(draw, caption, *results)
        return drawn[key]

    for module in (audit_page, bias_page, evaluation_page):
        monkeypatch.setattr(module, "report_figure", once)
