"""Opens web pages in a headless Chromium, for tests and for the pictures in docs/."""

import shutil
import subprocess
import tempfile
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--mute-audio", "--disable-extensions")
_PATIENCE = 300.0
"""Seconds of the clock; the machine may be busy."""


def shown(url: str, budget_ms: int = 60_000) -> str:
    """Return a page's elements as HTML, once its scripts have run for so many milliseconds of the browser's own time."""
    return _run(["--dump-dom"], url, budget_ms, (1600, 1000))


def picture(url: str, file: Path, size: tuple[int, int], budget_ms: int = 60_000) -> None:
    """Write a picture of a page, PNG, of that size in pixels."""
    _run([f"--screenshot={file}"], url, budget_ms, size)


def _run(what: list[str], url: str, budget_ms: int, size: tuple[int, int]) -> str:
    with tempfile.TemporaryDirectory() as profile:
        options = [f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}", f"--virtual-time-budget={budget_ms}"]
        done = subprocess.run(
            [str(CHROMIUM), *_OPTIONS, *options, *what, url], capture_output=True, timeout=_PATIENCE, check=True
        )
    return done.stdout.decode("utf-8", errors="replace")
