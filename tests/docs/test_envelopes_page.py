"""The page about envelopes agrees with the code: members, reasons, records, differences."""

import re
from dataclasses import fields
from functools import partial
from pathlib import Path

from phpmq_lite.envelopes import validation
from phpmq_lite.envelopes.dead_letter_record import DeadLetterBlock
from phpmq_lite.envelopes.validation import LANGUAGES, OUTDATED, REASONS
from tests.conformance.babelqueue_differences import TABLE
from tests.docs import pages
from tests.support.envelope_cases import MEMBERS, META

NAME = "docs/guides/envelopes.md"
PAGE = pages.text_of(NAME)


rows = partial(pages.rows, NAME)


def test_fields_are_those_of_the_contract() -> None:
    named = [row[0].strip("`") for row in rows("| member | type |")]
    expected = [name for name in MEMBERS if name != "meta"] + [f"meta.{name}" for name in META]
    assert sorted(named) == sorted([*expected, "urn", "dead_letter"])


def test_languages_and_outdated_members_are_named() -> None:
    languages = next(row for row in rows("| member | type |") if row[0] == "`meta.lang`")[2]
    assert re.findall(r"`(\w+)`", languages) == list(LANGUAGES)
    sentence = PAGE[PAGE.index("- `timestamp`") : PAGE.index("are outdated")]
    assert re.findall(r"`(\w+)`", sentence) == [
        *(name for container, name in OUTDATED if not container),
        *(name for container, name in OUTDATED if container),
        "meta",
    ]


def test_reasons_are_in_their_order() -> None:
    found = rows("| | reason |")
    assert [row[1].strip("`") for row in found] == list(REASONS)
    assert [row[0] for row in found] == [str(n) for n in range(1, len(REASONS) + 1)]


def test_reasons_of_layer_c_are_all_named() -> None:
    source = Path(validation.__file__).read_text(encoding="utf-8")
    written = set(re.findall(r'Problem\(\s*f?"([a-z_{}]+)"', source)) - set(REASONS)
    written = written - {"missing_{name}"} | {"missing_id", "missing_queue", "missing_lang"}
    sentence = PAGE[PAGE.index("Layer C has") : PAGE.index("The last finding may")]
    assert set(re.findall(r"`(\w+)`", sentence)) == written


def test_block_has_the_members_of_the_page() -> None:
    named = re.findall(r"`(\w+)`", " ".join(row[0] for row in rows("| member | meaning |")))
    assert sorted(named) == sorted(field.name for field in fields(DeadLetterBlock))


def test_differences_are_those_of_the_comparison() -> None:
    assert rows("| difference |") == [
        [d.name, ", ".join(f"`{question}`" for question in d.questions), d.package, d.ours]
        for d in TABLE
    ]


def test_commands_publish_an_envelope_to_the_queue_that_it_names() -> None:
    found = [
        (options, queue)
        for page in pages.PAGES
        for options, queue in re.findall(
            r"envelope create ([^|\n]*)\| *phpmq-lite publish (\S+)", pages.text_of(page)
        )
    ]
    assert len(found) > 1
    assert [queue for options, queue in found if f"--queue {queue} " not in options] == []
