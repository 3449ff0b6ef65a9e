"""A tab of Chromium that remembers what went wrong in it."""

from typing import Any, Literal

Scheme = Literal["light", "dark"]


async def open_tab(
    chromium: Any, *, width: int = 1280, scheme: Scheme = "light", scripts: bool = True
) -> tuple[Any, list[str]]:
    """Open a tab; the list takes every console error, CSP report, script error and dialog."""
    context = await chromium.new_context(
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
        java_script_enabled=scripts,
        reduced_motion="reduce",  # a colour on its way is no colour to judge
    )
    page = await context.new_page()
    troubles: list[str] = []

    def heard(message: Any) -> None:
        if message.type == "error" and "status of 4" not in message.text:  # our own error pages
            troubles.append(f"{page.url}: {message.text}")

    async def asked(dialog: Any) -> None:
        troubles.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    page.on("console", heard)
    page.on("pageerror", lambda error: troubles.append(f"{page.url}: {error}"))
    page.on("dialog", asked)
    return page, troubles


def barriers(results: Any) -> list[tuple[str, str]]:
    """Give the rule and the first place of each serious or critical finding of axe."""
    return [
        (violation["id"], violation["nodes"][0]["html"])
        for violation in results.response["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
