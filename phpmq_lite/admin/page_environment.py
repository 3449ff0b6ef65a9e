"""What the templates of all pages use: filters, functions and values."""

from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.page_layout import layout_values
from phpmq_lite.admin.messages import bodies
from phpmq_lite.admin.messages.envelope_card import RowVerdicts, shorten
from phpmq_lite.admin.system.health import list_access_warnings, list_broker_problems
from phpmq_lite.admin.trends import polyline
from phpmq_lite.durations import FORM_UNITS
from phpmq_lite.model import OUTCOMES, STATE_NAMES
from phpmq_lite.operator_actions import ACTIONS
from phpmq_lite.queue_settings import LONGEST_NAME, LONGEST_TTL_S
from phpmq_lite.storage.search.language import meta_search


@cache
def page_environment(folder: Path) -> jinja2.Environment:
    """Return the environment of the templates, which escapes values and rejects undefined names.

    All brokers in a process share the environment and its compiled templates.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        number=formats.format_number,
        rate=formats.format_rate,
        size=formats.format_size,
        duration=formats.format_duration,
        visible=formats.escape_hidden,
        lines=formats.escape_hidden_lines,
        state=STATE_NAMES.__getitem__,
        points=polyline,
    )
    environment.globals.update(
        moment=formats.format_time,
        pieces=formats.split_hidden,
        client_name=formats.client_name,
        plural=formats.plural,
        preview=bodies.preview,
        preview_data=bodies.preview_data,
        cut=shorten,
        meta_search=lambda meta_id: str(meta_search(meta_id)),
        ACTIONS=ACTIONS,
        FORM_UNITS=FORM_UNITS,
        OUTCOMES=OUTCOMES,
        LONGEST_NAME=LONGEST_NAME,
        LONGEST_TTL_S=LONGEST_TTL_S,
    )
    return environment


def page_values(call: Call) -> dict[str, Any]:
    """Return the values that every page requires."""
    return layout_values(call) | {
        "dangers": list(list_access_warnings(call)),
        "troubles": list_broker_problems(call),
        "badge_of": RowVerdicts(lambda: call.queues).of,
    }
