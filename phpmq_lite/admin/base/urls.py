"""Every URL of the admin: base path, queue names in paths, query strings."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote, urlencode

_ESCAPE: Final = "~"


def encode_name(name: str) -> str:
    """Return any queue name as one path segment.

    Browsers fold ``.`` and ``..`` even percent-encoded, so a name of dots alone, and one that
    starts with ``~``, gets another ``~`` in front.
    """
    if name.startswith(_ESCAPE) or not name.strip("."):
        name = _ESCAPE + name
    return quote(name, safe="")


def decode_name(segment: str) -> str:
    """Return the name of a raw path segment, before percent-decoding.

    A ``~`` is an escape only where ``encode_name`` writes one: before ``~`` and before only dots.
    ``%7E`` is never one: ``~orders`` and ``%7Eorders`` are the queue ``~orders``, not ``orders``.
    """
    name = unquote(segment)
    if segment.startswith(_ESCAPE) and (name.startswith(_ESCAPE, 1) or not name[1:].strip(".")):
        return name[1:]
    return name


def clean_base_path(text: str) -> str:
    """Return a base path as ``/mq``, or ``""`` for none, whatever its slashes."""
    path = "/".join(part for part in text.split("/") if part)
    return f"/{path}" if path else ""


class Urls:
    """Builds URLs from names of routes; ``paths`` has the templates, such as ``/queues/{q}``."""

    __slots__ = ("_paths", "_static_version", "base_path")

    def __init__(self, base_path: str, paths: Mapping[str, str], static_version: str = "") -> None:
        self.base_path = clean_base_path(base_path)
        self._paths = dict(paths)
        self._static_version = static_version

    def to(self, route: str, /, **values: object) -> str:
        """Return the URL of a route: values that are not path segments become the query.

        Values that are None or empty are omitted.
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
        """Return the URL of a page of the documentation, such as ``guides/admin#keyboard``."""
        return f"{self.base_path}/docs/{'' if name == 'index' else name}"

    def static(self, name: str) -> str:
        """Return the URL of a file of ``templates/static/``; it changes when any of them changes.

        The version is a folder, so that scripts, which import each other by ``./name.js``, are
        all of one version.
        """
        return f"{self.base_path}/static/{self._static_version}/{quote(name)}"


def is_own_path(text: str) -> bool:
    r"""Return whether a URL stays on this site: ``//host`` and ``/\host`` are other sites."""
    return (
        text.startswith("/")
        and not text.startswith("//")
        and not any(char <= " " or char in "\\\x7f" for char in text)
    )


def own_path_or(wanted: str, default: str) -> str:
    """Return the wanted page if it is a path of this site, else the default."""
    return wanted if is_own_path(wanted) else default
