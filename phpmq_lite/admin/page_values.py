"""What the slices add to all page templates: filters, functions and values of the layout."""

from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.page_layout import layout_values
from phpmq_lite.admin.http.templates import make_environment
from phpmq_lite.admin.messages import bodies
from phpmq_lite.admin.messages.envelope_card import RowVerdicts, shorten
from phpmq_lite.admin.system.health import list_access_warnings, list_broker_problems
from phpmq_lite.admin.trends import polyline
from phpmq_lite.durations import FORM_UNITS
from phpmq_lite.model import OUTCOMES
from phpmq_lite.operator_actions import ACTIONS
from phpmq_lite.queue_settings import LONGEST_NAME, LONGEST_TTL_S
from phpmq_lite.storage.search.language import meta_search


@cache
def page_environment(folder: Path) -> jinja2.Environment:
    """Return the environment of the templates in a folder.

    All brokers in a process share the environment and its compiled templates.
    """
    functions = {
        "preview": bodies.preview,
        "preview_data": bodies.preview_data,
        "cut": shorten,
        "meta_search": lambda meta_id: str(meta_search(meta_id)),
        "ACTIONS": ACTIONS,
        "FORM_UNITS": FORM_UNITS,
        "OUTCOMES": OUTCOMES,
        "LONGEST_NAME": LONGEST_NAME,
        "LONGEST_TTL_S": LONGEST_TTL_S,
    }
    return make_environment(folder, {"points": polyline}, functions)


def page_values(call: Call) -> dict[str, Any]:
    """Return the values that every page requires."""
    return layout_values(call) | {
        "dangers": list(list_access_warnings(call)),
        "troubles": list_broker_problems(call),
        "badge_of": RowVerdicts(lambda: call.queues).of,
    }
