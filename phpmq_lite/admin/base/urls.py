"""Every URL of the admin: base path, queue names in paths, query strings."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote, urlencode

_ESCAPE: Final = "~"


def encode_name(name: str) -> str:
    """Make one path segment of a queue name, whatever is in it.

    Browsers fold ``.`` and ``..`` even percent-encoded, so a name of dots alone, and one that
    starts with the sign itself, gets ``~`` in front.
    """
    if name.startswith(_ESCAPE) or not name.strip("."):
        name = _ESCAPE + name
    return quote(name, safe="")


def decode_name(segment: str) -> str:
    """Return the name that a path segment stands for, as it was sent: with its percent signs.

    A ``~`` is an escape only where ``encode_name`` writes one: ahead of another, and of dots alone.
    ``%7E`` is never one: ``~orders`` and ``%7Eorders`` are the queue ``~orders``, not ``orders``.
    """
    name = unquote(segment)
    if segment.startswith(_ESCAPE) and (name.startswith(_ESCAPE, 1) or not name[1:].strip(".")):
        return name[1:]
    return name


def clean_base_path(text: str) -> str:
    """Give a base path as ``/mq``, or ``""`` for none, however the slashes were written."""
    path = "/".join(part for part in text.split("/") if part)
    return f"/{path}" if path else ""


class Urls:
    """Builds URLs by the name of a route; ``paths`` has the templates, ``/queues/{q}``."""

    __slots__ = ("_paths", "_static_version", "base_path")

    def __init__(self, base_path: str, paths: Mapping[str, str], static_version: str = "") -> None:
        self.base_path = clean_base_path(base_path)
        self._paths = dict(paths)
        self._static_version = static_version

    def to(self, route: str, /, **values: object) -> str:
        """Give the URL of a route: its segments by name, all else becomes the query.

        Values that are None or empty are left out, so that a URL says only what differs.
        """
        path = self._paths[route]
        query = {}
        for key, value in values.items():
            if f"{{{key}}}" in path:
                path = path.replace(f"{{{key}}}", encode_name(str(value)))
            elif value not in (None, ""):
                query[key] = str(value)
        return self.base_path + path + (f"?{urlencode(query)}" if query else "")

    def docs(self, name: str = "index") -> str:
        """Return the URL of a page of the documentation, such as ``guides/admin#keys``."""
        return f"{self.base_path}/docs/{'' if name == 'index' else name}"

    def static(self, name: str) -> str:
        """Give the URL of a file of ``templates/static/``; it changes when one of them changes.

        The version is a folder: so the scripts, which import each other by ``./name.js``, are
        all of one version.
        """
        return f"{self.base_path}/static/{self._static_version}/{quote(name)}"


def is_own_path(text: str) -> bool:
    r"""Tell whether a browser stays here: to it ``//host`` and ``/\host`` are other sites."""
    return (
        text.startswith("/")
        and not text.startswith("//")
        and not any(char <= " " or char in "\\\x7f" for char in text)
    )


def own_path_or(wanted: str, default: str) -> str:
    """Give the page to go to: the wanted one where it is a path of ours, else the default."""
    return wanted if is_own_path(wanted) else default
