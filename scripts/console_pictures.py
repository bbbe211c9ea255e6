"""Write the pictures of the console in the documentation, from a pipeline with flowing events.

python -m scripts.console_pictures docs/images
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from instep import settings
from instep.console.server import ConsoleServer, ServerOptions
from instep.console.workspace import ConsoleOptions
from instep.demo import flowing
from instep.sinks import ledger_reader
from instep.waiting import wait_until
from scripts import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Page

DOCUMENTS = 200
FLOW_S = 90.0  # long enough for a chart, and for quarantine to act on
WIDTH, HEIGHT = 1200, 760
PICTURES = {"pipeline": "pipeline?pipeline=contracts"}
THEMES = ("light", "dark")


def main(folder: Path) -> None:
    """Write one picture of each page and theme."""
    with (
        tempfile.TemporaryDirectory() as work,
        flowing.flowing(DOCUMENTS, Path(work), _say) as config,
    ):
        loaded = settings.load_with_origins(config)
        server = ConsoleServer(loaded, ConsoleOptions(), ServerOptions("ann", port=0))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            time.sleep(FLOW_S)
            _wait_for_quarantine(loaded.settings.pipelines["contracts"])
            with chromium.browser() as browser:
                for theme in THEMES:
                    page = browser.new_page(
                        viewport={"width": WIDTH, "height": HEIGHT},
                        color_scheme="dark" if theme == "dark" else "light",
                        timezone_id="UTC",
                    )
                    page.goto(server.start_url)
                    _draw(page, server.address, theme, folder)
                    page.close()
        finally:
            server.stop()
            thread.join()


def _draw(page: Page, address: str, theme: str, folder: Path) -> None:
    for name, path in PICTURES.items():
        page.goto(address + path)
        page.screenshot(path=folder / f"console-{name}-{theme}.png", full_page=False)
    page.goto(f"{address}parked")
    page.get_by_role("region", name="Parked documents").locator("th a").first.click()
    page.get_by_role("button", name="Skip the blocking event").click()
    page.screenshot(path=folder / f"console-plan-{theme}.png", full_page=False)


def _wait_for_quarantine(pipeline: settings.Pipeline) -> None:
    wait_until(lambda: ledger_reader.read("contracts", pipeline).parked_documents > 0, FLOW_S)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
