"""Units of time: their lengths, and how users write them."""

from typing import Final

MINUTE_S: Final = 60
HOUR_S: Final = 3_600
DAY_S: Final = 86_400
WEEK_S: Final = 7 * DAY_S

UNITS_MS: Final = {  # on pages, largest first
    "d": DAY_S * 1_000,
    "h": HOUR_S * 1_000,
    "min": MINUTE_S * 1_000,
    "s": 1_000,
    "ms": 1,
}
FORM_UNITS: Final = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}
SHORT_UNITS_S: Final = {
    "s": 1,
    "m": MINUTE_S,
    "h": HOUR_S,
    "d": DAY_S,
    "w": WEEK_S,
}  # in commands: 15m
