"""What tests share: a browser, in which pages are opened as they are, with their policy, and used as readers do."""

from __future__ import annotations

import functools
import io
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:  # where the other packages of the tests are missing, this one may be, too
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 60_000
"""How many milliseconds anything may take. Only what fails takes them."""

_THREAD = ThreadPoolExecutor(1, thread_name_prefix="browser")
"""Where the browser is used: in its thread an event loop is running, so that asyncio.run would fail in other tests."""


def in_a_browser(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in the thread of the browser, or skip it if there is none."""

    @pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        _THREAD.submit(test, *given, **named).result()

    return run


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for all tests of a process, from the first that wants it."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    playwright = _THREAD.submit(sync_playwright().start).result()
    launch = playwright.chromium.launch
    found = _THREAD.submit(launch, executable_path=CHROMIUM, args=["--disable-gpu"], timeout=PATIENCE).result()
    yield found
    _THREAD.submit(found.close).result()
    _THREAD.submit(playwright.stop).result()


@pytest.fixture
def pages(chromium: Browser, tmp_path: Path) -> Iterator[Pages]:
    """Open pages, and fail if there was a problem in one."""
    found = Pages(chromium, tmp_path / "page.html")
    yield found
    _THREAD.submit(found.close).result()
    assert not found.problems, found.problems


class Pages:
    """Opens pages, each in a profile of its own."""

    def __init__(self, browser: Browser, path: Path) -> None:
        self.problems: list[str] = []
        """What went wrong in the pages: what their policy forbade, errors of their scripts, loading from elsewhere."""
        self._browser, self._path = browser, path
        self._contexts: list[BrowserContext] = []

    def open(
        self,
        html: str,
        address: str = "",
        *,
        width: int = 1000,
        height: int = 1000,
        dark: bool = False,
        touch: bool = False,
        without_policy: bool = False,
    ) -> Page:
        """Open a page from a file; `address` follows the file's."""
        self._path.write_text(html, encoding="utf-8")
        context = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            has_touch=touch,
            bypass_csp=without_policy,
        )
        self._contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page, url = context.new_page(), self._path.as_uri()

        def loads(wanted: str) -> None:
            if wanted != url and not wanted.startswith(("data:", "about:")):
                self.problems.append(f"loads {wanted}")

        page.on("request", lambda request: loads(request.url))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda told: self.problems.append(told.text) if told.type in ("error", "warning") else None)
        page.goto(url + address)
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()


def pixels(page: Page) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Return what is seen of a page: height, width and red, green, blue from 0 to 255."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(np.int16)


def check_light_and_dark(page: Page) -> None:
    """Something is seen of a page in both colour schemes, and its ground is light in one alone."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        seen = pixels(page)
        ground = seen[2, 2]
        assert (ground.mean() > 0.9 * 255) == (scheme == "light")
        assert (abs(seen - ground).max(axis=2) > 0.3 * 255).mean() > 0.02
