"""How this installation was built: what handles each message is compiled, or it is not."""

from importlib.util import find_spec


def kind() -> str:
    """Return ``compiled`` or ``pure Python``; ``hatch_build.py`` makes the difference."""
    spec = find_spec("phpmq_lite.model")  # among what is compiled; this does not import it
    is_source = spec is None or (spec.origin or "").endswith(".py")
    return "pure Python" if is_source else "compiled"
