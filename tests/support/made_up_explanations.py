"""What tests share: made up explanations."""

import shutil
import subprocess
from pathlib import Path

from conserva.engine.ledger import Ledger
from conserva.results.explanation import Explanation

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def explanation(features: list[str], **changes: object) -> Explanation:
    scores = [((i * 7) % 11 - 5) / 5 for i in range(len(features))]
    settings = {
        "features": tuple(features),
        "scores": tuple(scores),
        "special": tuple(i == 0 for i in range(len(features))),
        "words": tuple(range(len(features))),
        "text": " ".join(features),
        "target": "positive",
        "output": 1.5,
        "probability": 0.9,
        "ledger": Ledger.of(1.5, sum(scores), 0.25, -0.125),
        "method": "exact",
        "model": "sentiment",
        **changes,
    }
    return Explanation(**settings)  # type: ignore[arg-type]


WITH_FOCUS = """
const withFocus = run => {
  if (document.hasFocus()) run(); else setTimeout(withFocus, 10, run);
};
"""
"""JavaScript: call a function when the page has the focus, which styles of the focused element need.

A busy browser gives it late: see `until`.
"""


def in_browser(path: Path, *options: str, until: str = "") -> str:
    """Open a page; with `until`, again and with more time, until what is printed has that text."""
    for budget in (2_000, 20_000, 20_000, 60_000):
        found = _opened(path, budget, *options)
        if until in found:
            break
    return found


def _opened(path: Path, budget: int, *options: str) -> str:
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={path.parent / 'profile'}", f"--virtual-time-budget={budget}", *options, path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.stdout
