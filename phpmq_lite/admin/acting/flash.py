"""After an action: back to where the person was, with a note."""

from aiohttp import web

from phpmq_lite.admin.acting.notes import Note
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.requests import is_own_path


def leave(request: web.Request, note: Note) -> None:
    """Leave a note for the next page of this session."""
    sessions = context_of(request).sessions
    sessions.note(request, note.text, undo=note.undo, link=note.link)


def back(wanted: str, default: str) -> str:
    """Give the page to go to: the wanted one where it is a path of ours, else the default."""
    return wanted if is_own_path(wanted) else default
