"""Where verdict and package differ, each with its name, as in docs/guides/envelopes.md.

The package is asked three things: ``poison_cause`` (layer A), ``envelope_violation`` (layer A
without the identity) and ``accepts`` of what ``decode_lenient`` reads (layer B).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from babelqueue import EnvelopeCodec
from babelqueue._envelope_shape import envelope_violation

from phpmq_lite.envelopes.validation import Verdict, validate

Question = Literal["poison_cause", "envelope_violation", "accepts"]


@dataclass(slots=True)
class Answers:
    """Both verdicts on a body: True if accepted; an exception's name if the package raised."""

    verdict: Verdict
    package: dict[Question, bool | str]
    ours: dict[Question, bool] = field(init=False)

    def __post_init__(self) -> None:
        problem = self.verdict.problem
        is_read = self.reason not in ("poison", "too_deep")
        self.ours = {
            "poison_cause": is_read,
            "envelope_violation": is_read or (problem is not None and self.detail == "missing_urn"),
            "accepts": problem is None,
        }

    @property
    def reason(self) -> str:
        return self.verdict.problem.reason if self.verdict.problem else ""

    @property
    def detail(self) -> str:
        return self.verdict.problem.detail if self.verdict.problem else ""


@dataclass(slots=True, frozen=True)
class Difference:
    """One known difference, and a predicate that recognizes it."""

    name: str
    questions: tuple[Question, ...]
    package: str  # what the package does
    ours: str  # what the verdict does, and why
    applies: Callable[[Answers], bool]


def _is_raised(answers: Answers) -> bool:
    return answers.package["accepts"] == "RecursionError"


ALL: Final[tuple[Question, ...]] = ("poison_cause", "envelope_violation", "accepts")

TABLE: Final = (
    Difference(
        "recursion",
        ("accepts",),
        "`decode` and `decode_lenient` raise RecursionError near 990 levels",
        "`too_deep`; nothing is raised",
        _is_raised,
    ),
    Difference(
        "levels",
        ALL,
        "takes as many levels as the stack allows",
        "`too_deep` above 256, so that every language can read what is taken: PHP stops at 512",
        lambda answers: answers.reason == "too_deep" and not _is_raised(answers),
    ),
    Difference(
        "lone surrogate",
        ALL,
        "takes an escape that is half of a surrogate pair",
        "`poison`: it cannot be written as UTF-8 again",
        lambda answers: "surrogate" in answers.detail,
    ),
    Difference(
        "empty list",
        ALL,
        "`data: []` is poison",
        "read as `{}` where `empty_list_data` says so: php-sdk 1.9 sends every empty `data` so",
        lambda answers: answers.verdict.is_tolerated,
    ),
    Difference(
        "null",
        ("envelope_violation",),
        "takes the body `null` for an envelope without members",
        "`poison`, as `poison_cause` has it",
        lambda answers: answers.detail == "the root is null, not an object",
    ),
    Difference(
        "long integer",
        ("envelope_violation",),
        "takes an integer of more than 4,300 digits outside `data`",
        "`poison`, as `poison_cause` has it: CPython cannot read it",
        lambda answers: "digits" in answers.detail,
    ),
    Difference(
        "not UTF-8",
        ("envelope_violation",),
        "takes bytes inside a text that are not UTF-8",
        "`poison`, as `poison_cause` has it",
        lambda answers: answers.detail.endswith("is not valid UTF-8"),
    ),
    Difference(
        "layer A",
        ("accepts",),
        "takes `schema_version` true or 1.0, `attempts` beyond 64 bits, NaN, any `meta.id`, any "
        "`dead_letter`, any type in all but the last of repeated members",
        "`poison`, as `poison_cause` has it: layer A comes before layer B",
        lambda answers: answers.package["poison_cause"] is False and answers.reason == "poison",
    ),
)


def _asked(call: Callable[[str], Any], text: str) -> bool | str:
    try:
        return bool(call(text))
    except Exception as error:  # what it raises is its answer
        return type(error).__name__


def answers_of(content: bytes) -> Answers:
    """Return both verdicts; the package gets text decoded as its own transports decode it."""
    text = content.decode("utf-8", "surrogateescape")
    return Answers(
        validate(content),
        {
            "poison_cause": _asked(lambda t: EnvelopeCodec.poison_cause(t) is None, text),
            "envelope_violation": _asked(lambda t: envelope_violation(t) is None, text),
            "accepts": _asked(
                lambda t: EnvelopeCodec.accepts(EnvelopeCodec.decode_lenient(t)), text
            ),
        },
    )


@dataclass(slots=True)
class Comparison:
    bodies: int = 0
    taken: int = 0  # by our verdict
    agreed: Counter[str] = field(default_factory=Counter)  # question -> bodies
    different: Counter[tuple[str, str]] = field(default_factory=Counter)  # name, question -> bodies
    unknown: list[tuple[str, bytes, Answers]] = field(default_factory=list)

    def add(self, content: bytes) -> None:
        """Compare a body."""
        answers = answers_of(content)
        self.bodies += 1
        self.taken += answers.verdict.problem is None
        for question, ours in answers.ours.items():
            if answers.package[question] == ours and answers.package[question] in (True, False):
                self.agreed[question] += 1
                continue
            for difference in TABLE:
                if question in difference.questions and difference.applies(answers):
                    self.different[difference.name, question] += 1
                    break
            else:
                self.unknown.append((question, content, answers))
