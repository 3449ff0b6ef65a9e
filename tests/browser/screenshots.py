"""Take a picture of every page: ``python -m tests.browser.screenshots FOLDER [WORD]``.

Light, dark and 360 px wide, of a filled and an empty broker; WORD selects file names.
"""

import asyncio
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.browser.filled import Site, site_of, write_schemas
from tests.browser.tabs import launched
from tests.browser.tour import EMPTY, paths

LOOKS: Final[dict[str, dict[str, Any]]] = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 360, "height": 740}, "color_scheme": "light"},
}
URNS: Final = ("urn:orders:created", "urn:orders:created.v2", "urn:babel:invoices:sent.v12")
ORDER: Final = {
    "type": "object",
    "title": "An order was placed",
    "required": ["order_id", "total"],
    "properties": {
        "order_id": {"type": "integer", "minimum": 1},
        "total": {"type": "string", "minLength": 1, "description": "In the currency of the shop."},
        "currency": {"enum": ["EUR", "USD", "TRY"]},
        "mail": {"type": "string", "x-gdpr-sensitive": "email"},
        "lines": {
            "type": "array",
            "items": {"type": "object", "required": ["sku"], "properties": {"sku": {}}},
        },
    },
    "maxProperties": 9,
}


async def take(site: Site, browser: Any, names: dict[str, str], folder: Path, word: str) -> None:
    for look, options in LOOKS.items():
        context = await browser.new_context(**options)
        page = await context.new_page()
        for number, (name, path) in enumerate(names.items()):
            short = re.sub(r"[0-9a-f]{32}|[\w-]{22}", str(number), name)  # ids differ each time
            file = f"{re.sub(r'[^a-z0-9]+', '-', short.lower()).strip('-')[:60]}.{look}.png"
            if word in file:
                await page.goto(site.url(path))
                await page.wait_for_timeout(200)
                await page.screenshot(path=folder / file, full_page=True)
        await context.close()


async def main(folder: Path, word: str) -> None:
    ui = {"environment": "staging"}
    async with launched() as browser:
        with tempfile.TemporaryDirectory() as data:
            schemas = {"schemas": write_schemas(Path(data) / "schemas", ORDER, *URNS)}
            async with site_of(Path(data) / "full", ui=ui, envelopes=schemas) as site:
                await take(site, browser, await paths(site), folder, word)
                (site.running.data / "pipeline" / "summary.json").write_text('{"version": 2}')
                await take(site, browser, {"broken /insights": "/insights"}, folder, word)
            async with site_of(Path(data) / "empty", is_filled=False) as site:
                names = {f"empty {path}": path for path in EMPTY}
                await take(site, browser, names, folder, word)


if __name__ == "__main__":
    pictures = Path(sys.argv[1])
    pictures.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(pictures, sys.argv[2] if len(sys.argv) > 2 else ""))
