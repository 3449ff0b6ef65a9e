"""Replay plans, which are named selections cut into pieces; does not import pyspark.

A plan is stored before its first message is published. The same selection has the same name, so
repeating a command continues its plan. With relative times, the selection differs each time, so a
run must be continued by name.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Final

from phpmq_lite.errors import RefusedError
from phpmq_lite.spark import results_folder
from phpmq_lite.spark.jobs.options import ReplayOptions
from phpmq_lite.spark.results_folder import ResultsFolder, read_json_files

_TIMES: Final = ("since_ms", "until_ms")
_NOT_SELECTION: Final = {"connection", "out", "name", "is_continuation", "rate", "dry_run"}
_SELECTION: Final = [f.name for f in fields(ReplayOptions) if f.name not in _NOT_SELECTION]


@dataclass(slots=True)
class ReplayPlan:
    """A list of the messages to publish, as selected by the first run."""

    name: str
    app_id: str  # deduplication key for publishing, unique to this plan
    selection: dict[str, Any]
    pieces: list[list[int]] = field(default_factory=list)  # [first offset, last offset, row count]
    without_body: int = 0  # number of selected messages whose body was removed or not archived

    @property
    def rows(self) -> int:
        """Number of messages in all pieces."""
        return sum(rows for _, _, rows in self.pieces)

    def rows_of(self, pieces: int) -> int:
        """Return the number of messages in the first ``pieces`` pieces."""
        return sum(rows for _, _, rows in self.pieces[:pieces])


def plan_name(options: ReplayOptions) -> str:
    """Return the plan's name, which is either given or derived from the selection."""
    if options.name is not None:
        return options.name
    text = json.dumps(selection_of(options), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def selection_of(options: ReplayOptions) -> dict[str, Any]:
    """Return the selection and the target in the options as JSON values."""
    values: dict[str, Any] = {name: getattr(options, name) for name in _SELECTION}
    return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}


def with_planned_selection(plan: ReplayPlan, options: ReplayOptions) -> ReplayOptions:
    """Return a copy of the options with the selection taken from the plan."""
    selection: dict[str, Any] = {
        n: tuple(v) if isinstance(v, list) else v for n, v in plan.selection.items()
    }
    return replace(options, **selection)


def find_plan(files: ResultsFolder, options: ReplayOptions) -> ReplayPlan | None:
    """Return the stored plan that these options continue, or None if a new plan is needed.

    Raises:
        RefusedError: ``no_plan``: no plan has this name; ``other_plan``: the plan of this name has
            another selection; ``unfinished_plan``: a plan with other times is incomplete.
    """
    name = plan_name(options)
    text = files.read(results_folder.replay_plan_file(name))
    plan = None if text is None else ReplayPlan(**json.loads(text))
    if options.is_continuation:
        if plan is None:
            names = ", ".join(sorted(stored.name for stored in _all(files))) or "none"
            raise RefusedError("no_plan", f"there is no replay {name}; available: {names}")
        return plan
    if plan is not None and plan.selection != selection_of(options):
        raise RefusedError(
            "other_plan",
            f"the replay {name} has a different selection: {_describe_plan(plan)}. To continue it, "
            f"use --name {name} and no selection; to send something else, use another name",
        )
    if plan is None and options.name is None:
        _refuse_unfinished(files, options)
    return plan


def _refuse_unfinished(files: ResultsFolder, options: ReplayOptions) -> None:
    """Refuse to repeat an interrupted run with new times, which would send most messages twice."""
    selection = _without_times(selection_of(options))
    for plan in _all(files):
        sent = sent_pieces(files, plan)
        if _without_times(plan.selection) == selection and sent < len(plan.pieces):
            raise RefusedError(
                "unfinished_plan",
                f"the replay {plan.name} has the same selection except for the times, and sent "
                f"{plan.rows_of(sent)} of {plan.rows} messages: {_describe_plan(plan)}. To "
                f"continue it, use --name {plan.name} and no selection; to send the new selection, "
                "which may send some messages twice, use another --name",
            )


def _without_times(selection: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in selection.items() if name not in _TIMES}


def _describe_plan(plan: ReplayPlan) -> str:
    """Describe what a plan selects, with readable times and without empty fields."""
    selection = {name: value for name, value in plan.selection.items() if value}
    for name in _TIMES:
        if name in selection:
            selection[name.removesuffix("_ms")] = time_text(selection.pop(name))
    return json.dumps(selection)


def time_text(at_ms: int) -> str:
    """Format Unix milliseconds as a UTC time, to the second, for ``--since`` and ``--until``."""
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def sent_pieces(files: ResultsFolder, plan: ReplayPlan) -> int:
    """Return how many pieces are known to be published; one more may have been published too."""
    return int(files.read(results_folder.replay_progress_file(plan.name)) or 0)


def store_plan(files: ResultsFolder, plan: ReplayPlan) -> None:
    """Store a plan in the file for its name."""
    files.write(results_folder.replay_plan_file(plan.name), json.dumps(asdict(plan)))


def _all(files: ResultsFolder) -> list[ReplayPlan]:
    return [ReplayPlan(**document) for document in read_json_files(files, results_folder.REPLAYS)]


def cut_pieces(
    rows: Iterable[tuple[int, int]], *, max_rows: int, max_bytes: int
) -> list[list[int]]:
    """Group sorted (offset, size) pairs into pieces: [first offset, last offset, row count].

    A piece has at least one row, whatever its size. Rows with equal offsets stay together.
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
