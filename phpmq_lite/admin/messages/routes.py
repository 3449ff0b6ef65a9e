"""The endpoints of messages."""

from typing import Final

from phpmq_lite.admin.messages import (
    actions,
    arrow_export,
    bulk,
    exports,
    history,
    imports,
    listing,
    message,
    publish,
    schemas,
    search,
    selections,
    tail,
    traces,
    wait,
)

ROUTES: Final = tuple(
    route
    for part in (
        search,
        listing,
        message,
        actions,
        selections,
        bulk,
        publish,
        history,
        traces,
        schemas,
        arrow_export,
        exports,
        imports,
        wait,
        tail,
    )
    for route in part.endpoints.routes
)
