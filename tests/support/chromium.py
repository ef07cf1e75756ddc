"""Chromium for tests that look at pages as a reader does; they are skipped where Playwright or
Chromium is missing.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage")
"""For root, and for containers with little shared memory."""


@contextmanager
def chromium() -> Iterator[Any]:
    """Playwright's browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()
