"""Admin URLs: the base path, queue names in paths, and query strings."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote, urlencode

_ESCAPE: Final = "~"


def encode_name(name: str) -> str:
    """Encode a queue name, whatever its characters, as a single path segment.

    Browsers resolve ``.`` and ``..`` even if percent-encoded, so a name that consists of dots or
    starts with ``~`` gets an additional leading ``~``.
    """
    if name.startswith(_ESCAPE) or not name.strip("."):
        name = _ESCAPE + name
    return quote(name, safe="")


def decode_name(segment: str) -> str:
    """Return the queue name in a path segment that has not been percent-decoded.

    A leading ``~`` is an escape only before ``~`` or before dots alone; ``%7E`` is never an escape.
    So ``~orders`` and ``%7Eorders`` both name the queue ``~orders``, not ``orders``.
    """
    name = unquote(segment)
    if segment.startswith(_ESCAPE) and (name.startswith(_ESCAPE, 1) or not name[1:].strip(".")):
        return name[1:]
    return name


def clean_base_path(text: str) -> str:
    """Return a base path with normalized slashes, such as ``/mq``, or ``""`` if it is empty."""
    path = "/".join(part for part in text.split("/") if part)
    return f"/{path}" if path else ""


class Urls:
    """Builds URLs; ``paths`` maps route names to templates such as ``/queues/{q}``."""

    __slots__ = ("_paths", "_static_version", "base_path")

    def __init__(self, base_path: str, paths: Mapping[str, str], static_version: str = "") -> None:
        self.base_path = clean_base_path(base_path)
        self._paths = dict(paths)
        self._static_version = static_version

    def to(self, route: str, /, **values: object) -> str:
        """Return the URL of a route; values not used in the path become the query string.

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
        """Return the URL of a documentation page, such as ``guides/admin#keyboard``."""
        return f"{self.base_path}/docs/{'' if name == 'index' else name}"

    def static(self, name: str) -> str:
        """Return the URL of a file in ``templates/static/``; the URL changes when any file changes.

        The version is a path segment, so scripts that import each other as ``./name.js`` always
        have the same version.
        """
        return f"{self.base_path}/static/{self._static_version}/{quote(name)}"


def own_path_or(path: str, default: str) -> str:
    r"""Return a path on this site, else ``default``; ``//host``, ``/\host`` lead to other sites."""
    is_own = (
        path.startswith("/")
        and not path.startswith("//")
        and not any(char <= " " or char in "\\\x7f" for char in path)
    )
    return path if is_own else default
