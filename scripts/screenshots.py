"""Take the pictures of the demo for the documentation: `python scripts/screenshots.py --out
docs/figures`.

Needs Playwright, which the extra `dev` brings, and Chromium.
"""

import json
import shutil
import socket
from pathlib import Path

import click
from playwright.sync_api import Page, sync_playwright

from faithful_search.demo import app
from faithful_search.measure.widget import EXAMPLE, QUESTION


def space(page: Page) -> None:
    """What is seen first: two agents after a fact was changed."""
    page.locator(".card.bad").wait_for()


def ask(page: Page) -> None:
    """A citation lights the evidence that it names, and the words that stand there."""
    page.get_by_role("tab", name="Ask").click()
    page.locator("#ask-step-2 button.cite").first.hover()


def audit(page: Page) -> None:
    """Three rows, of which one cites what was never returned, beside another; and a broken line."""
    forged = EXAMPLE.replace("<ref>E1</ref>", "<ref>E1, E7</ref>")
    texts = (EXAMPLE, forged, EXAMPLE)
    rows = [json.dumps({"question": QUESTION, "text": text}) for text in texts]
    page.get_by_role("tab", name="Audit").click()
    page.get_by_label("A trajectory, a chat").fill("\n".join([*rows, rows[0][:-9]]))
    page.get_by_role("button", name="Audit", exact=True).click()
    page.locator(".rows li", has_text="row 2").get_by_role("button", name="show beside").click()
    page.locator("#right-step-1").wait_for()


SCENES = {"space": space, "space_ask": ask, "space_audit": audit}


@click.command(help=__doc__)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder of the pictures.",
)
@click.option("--width", type=int, default=1280, show_default=True)
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True)
def main(out: Path, width: int, theme: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = app.launch("127.0.0.1", port, prevent_thread_lock=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, scene in SCENES.items():
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)  # type: ignore[arg-type]
            page.goto(f"http://127.0.0.1:{port}/?__theme={theme}")
            page.locator(".trajectory:visible").first.wait_for()
            scene(page)
            page.wait_for_timeout(1000)  # what fades in
            page.screenshot(path=out / f"{name}.png", full_page=True)
        browser.close()
    served.close(verbose=False)


if __name__ == "__main__":
    main()
