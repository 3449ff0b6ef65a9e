"""Plans of replays: what was selected, cut into pieces, under a name.  Imports no pyspark.

A plan is stored before its first message is published.  The same selection gives the same name,
so a run that is repeated in the same words goes on; one with relative times has other words each
time, and goes on by its name.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from phpmq_lite.errors import RefusedError
from phpmq_lite.spark import results_folder
from phpmq_lite.spark.jobs.options import ReplayOptions
from phpmq_lite.spark.results_folder import ResultsFolder

_TIMES: Final = ("since_ms", "until_ms")
_SELECTION: Final = (
    "source",
    "queues",
    "queue_pattern",
    *_TIMES,
    "outcomes",
    "reasons",
    "urns",
    "traces",
    "where",
    "to_queue",
    "ttl_s",
)


@dataclass(slots=True)
class ReplayPlan:
    """What is to be published, as it was when the first run selected it."""

    name: str
    app_id: str  # the broker's key; a new one for each plan
    selection: dict[str, Any]
    pieces: list[list[int]] = field(default_factory=list)  # first and last offset, rows
    without_body: int = 0  # selected, but retention took the body, or it was archived without

    @property
    def rows(self) -> int:
        """Count the messages of all pieces."""
        return sum(rows for _, _, rows in self.pieces)

    def rows_of(self, pieces: int) -> int:
        """Count the messages of the first pieces."""
        return sum(rows for _, _, rows in self.pieces[:pieces])


def plan_name(options: ReplayOptions) -> str:
    """Give the plan's name: the given one, or one made from the selection."""
    if options.name is not None:
        return options.name
    text = json.dumps(selection_of(options), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def selection_of(options: ReplayOptions) -> dict[str, Any]:
    """Give what a plan selects and where it goes, as JSON gives it back."""
    given: dict[str, Any] = {name: getattr(options, name) for name in _SELECTION}
    return {n: list(v) if isinstance(v, tuple) else v for n, v in given.items()}


def with_planned_selection(plan: ReplayPlan, options: ReplayOptions) -> ReplayOptions:
    """Give the options with the selection of a plan."""
    selection: dict[str, Any] = {
        n: tuple(v) if isinstance(v, list) else v for n, v in plan.selection.items()
    }
    return replace(options, **selection)


def find_plan(files: ResultsFolder, options: ReplayOptions) -> ReplayPlan | None:
    """Read the plan that a run with these options goes on with; None where it makes a new one.

    Raises:
        RefusedError: ``no_plan``: it shall go on, and there is none of the name;
            ``other_plan``: the plan of the name selects something else;
            ``unfinished_plan``: one that differs in its times only is not all sent yet.
    """
    name = plan_name(options)
    plan = _read(files, name)
    if options.goes_on:
        if plan is None:
            names = ", ".join(sorted(each.name for each in _all(files))) or "none"
            raise RefusedError("no_plan", f"there is no replay {name}; there are: {names}")
        return plan
    if plan is not None and plan.selection != selection_of(options):
        raise RefusedError(
            "other_plan",
            f"the replay {name} selects otherwise: {_told(plan)}. To go on with it, give --name "
            f"{name} and no selection; to send something else, take another name",
        )
    if plan is None and options.name is None:
        _refuse_unfinished(files, options)
    return plan


def _refuse_unfinished(files: ResultsFolder, options: ReplayOptions) -> None:
    """Stop who repeats an interrupted run with other times: most of it would be sent twice."""
    asked = _timeless(selection_of(options))
    for plan in _all(files):
        sent = sent_pieces(files, plan)
        if _timeless(plan.selection) == asked and sent < len(plan.pieces):
            raise RefusedError(
                "unfinished_plan",
                f"the replay {plan.name} has the same selection but for the times, and sent "
                f"{plan.rows_of(sent)} of {plan.rows} messages: {_told(plan)}. To go on with it, "
                f"give --name {plan.name} and no selection; to send a new selection, and some "
                "messages twice perhaps, give it a --name of its own",
            )


def _timeless(selection: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in selection.items() if name not in _TIMES}


def _told(plan: ReplayPlan) -> str:
    """Write what a plan selects, times as a person does; what it leaves open is left out."""
    given = {name: value for name, value in plan.selection.items() if value}
    times = {
        name.removesuffix("_ms"): time_text(given.pop(name)) for name in _TIMES if name in given
    }
    return json.dumps(given | times)


def time_text(at_ms: int) -> str:
    """Write Unix milliseconds as ``--since`` and ``--until`` take them, to the second, in UTC."""
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def sent_pieces(files: ResultsFolder, plan: ReplayPlan) -> int:
    """Read how many pieces are out; the one after them may be out, too."""
    return int(files.read(results_folder.replay_progress_file(plan.name)) or 0)


def store_plan(files: ResultsFolder, plan: ReplayPlan) -> None:
    """Store a plan."""
    files.write(results_folder.replay_plan_file(plan.name), json.dumps(asdict(plan)))


def _read(files: ResultsFolder, name: str) -> ReplayPlan | None:
    text = files.read(results_folder.replay_plan_file(name))
    return None if text is None else ReplayPlan(**json.loads(text))


def _all(files: ResultsFolder) -> list[ReplayPlan]:
    texts = (
        files.read(f"{results_folder.REPLAYS}/{name}")
        for name in files.names(results_folder.REPLAYS)
        if name.endswith(".json") and not name.startswith(".")
    )
    return [ReplayPlan(**json.loads(text)) for text in texts if text is not None]


def cut_pieces(
    rows: Iterable[tuple[int, int]], *, max_rows: int, max_bytes: int
) -> list[list[int]]:
    """Cut (offset, size) pairs in order into pieces: first offset, last offset, rows.

    A piece has at least one row, however large.  Equal offsets stay together.
    """
    pieces: list[list[int]] = []
    size = 0
    for offset, row_bytes in rows:
        is_full = not pieces or pieces[-1][2] >= max_rows or size + row_bytes > max_bytes
        if is_full and not (pieces and pieces[-1][1] == offset):
            pieces.append([offset, offset, 0])
            size = 0
        pieces[-1][1] = offset
        pieces[-1][2] += 1
        size += row_bytes
    return pieces
