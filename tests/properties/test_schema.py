"""Schemas of payloads: compatible means that old values stay right; the SDK's verdicts are ours."""

import copy
from typing import Any

from babelqueue.schema import validate_schema
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from phpmq_lite.envelopes.payload_schema import SchemaError, read_schema
from phpmq_lite.envelopes.schema_compatibility import schema_changes

Document = dict[str, Any]
NAMES = st.sampled_from(["a", "b", "c", "d/e"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 6),
    st.sampled_from([0.0, 1.0, 1.5]),
    st.text("xyü", max_size=4),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def schemas(
    draw: st.DrawFn, depth: int = 2, *, is_plain: bool = False, is_object: bool = False
) -> Document:
    """Draw a schema; if ``is_plain``, only with keywords that the SDK also checks."""
    kinds = (
        ["object"]
        if is_object
        else ["string", "integer", "number", "boolean", "null", "enum", "enum"]
    )
    kinds += ["object", "object", "array"] if depth and not is_object else []
    kind = draw(st.sampled_from(kinds))
    made: Document = {"type": kind}
    if kind == "enum":
        return {"enum": draw(st.lists(SCALARS, min_size=1, max_size=4))}
    if not is_plain and draw(st.integers(0, 5)) == 0:
        made["type"] = [kind, "null"]
    if not is_plain and draw(st.integers(0, 9)) == 0:
        del made["type"]
    if kind == "string":
        made["minLength"] = draw(st.integers(0, 3))
    if kind in ("integer", "number") and draw(st.booleans()):
        made["minimum"] = draw(st.integers(-2, 4))
    if kind == "array":
        made["items"] = draw(schemas(depth=depth - 1, is_plain=is_plain))
    if kind == "object":
        made["properties"] = draw(
            st.dictionaries(
                NAMES, schemas(depth=depth - 1, is_plain=is_plain), min_size=is_object, max_size=3
            )
        )
        made["required"] = draw(st.lists(NAMES, max_size=2, unique=True))
        rest = draw(st.integers(0, 3))
        if rest == 0:
            made["additionalProperties"] = False
        elif rest == 1 and not is_plain:
            made["additionalProperties"] = draw(schemas(depth=0))
    return made


@st.composite
def changed(draw: st.DrawFn, old: Document, *, is_mild: bool = False) -> Document:
    """Draw a new version with a few changes; if ``is_mild``, mostly compatible ones."""
    new = copy.deepcopy(old)
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.sampled_from(list(_nodes(new))))
        _change(draw, place, _mild(place) if is_mild else _all(place))
    return new


def _mild(place: Document) -> list[str]:
    actions = ["title"]
    actions += ["add", "relax"] if "properties" in place else []
    actions += ["widen"] if "enum" in place else []
    actions += ["minLength"] if "minLength" in place else []
    return actions + (["minimum"] if "minimum" in place else [])


def _all(place: Document) -> list[str]:
    actions = ["type", "title"]
    actions += ["add", "add", "require", "relax", "close"] if "properties" in place else []
    actions += ["remove"] if place.get("properties") else []
    actions += ["enum", "enum", "widen"] if "enum" in place else []
    actions += ["minLength"] * 3 if "minLength" in place else []
    return actions + (["minimum"] * 3 if place.get("type") in ("integer", "number") else [])


def _change(draw: st.DrawFn, place: Document, actions: list[str]) -> None:
    match draw(st.sampled_from(actions)):
        case "add":
            place["properties"].setdefault(draw(NAMES), draw(schemas(depth=1)))
        case "remove":
            place["properties"].pop(draw(st.sampled_from(sorted(place["properties"]))))
        case "require":
            place["required"] = draw(st.lists(NAMES, max_size=2, unique=True))
        case "relax":
            place["required"] = place["required"][1:]
        case "close":
            place["additionalProperties"] = draw(st.one_of(st.booleans(), schemas(depth=0)))
        case "enum":
            place["enum"] = draw(st.lists(SCALARS, min_size=1, max_size=5))
        case "widen":
            place["enum"] = [*place["enum"], draw(SCALARS)]
        case "minLength":
            place["minLength"] = draw(st.integers(0, 3))
        case "minimum":
            place["minimum"] = draw(st.integers(-2, 4))
        case "type":
            place["type"] = draw(st.sampled_from(["string", "integer", "number", "object"]))
        case _:
            place["title"] = "other words"


def _nodes(schema: Any) -> list[Document]:
    if not isinstance(schema, dict):
        return []
    inner = [*schema.get("properties", {}).values(), schema.get("items")]
    inner.append(schema.get("additionalProperties"))
    return [schema, *(node for one in inner for node in _nodes(one))]


@st.composite
def values(draw: st.DrawFn, schema: Any) -> Any:
    """Draw a value that is probably valid, with no member that the schema does not describe.

    Where nothing is said it is a scalar or empty: a member that nobody described may be described
    later, which is compatible by agreement.  A rest of ``{}`` describes nothing either.
    """
    if not isinstance(schema, dict):
        return draw(SCALARS)
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    types = schema.get("type", ["object", "array", "string", "integer", "boolean"])
    match draw(st.sampled_from(types if isinstance(types, list) else [types])):
        case "object":
            known = schema.get("properties", {})
            names = draw(st.sets(st.sampled_from(sorted(known)))) if known else set()
            names |= {name for name in schema.get("required", []) if name in known}
            made = {name: draw(values(known[name])) for name in names}
            rest = schema.get("additionalProperties")
            if isinstance(rest, dict) and read_schema(schema).rule.additional is not None:
                for name in draw(st.sets(NAMES, max_size=2)) | set(schema.get("required", [])):
                    if name not in made and name not in known:
                        made[name] = draw(values(rest))
            return made
        case "array":
            return draw(st.lists(values(schema.get("items")), max_size=3))
        case "string":
            return draw(st.text("xyü", min_size=schema.get("minLength", 0), max_size=5))
        case "integer":
            return draw(st.integers(schema.get("minimum", -3), 8))
        case "number":
            return draw(st.sampled_from([0.5, 1.0])) + schema.get("minimum", 0)
        case "boolean":
            return draw(st.booleans())
        case _:
            return None


def right_values(data: st.DataObject, schema: Document) -> list[Any]:
    drawn = data.draw(st.lists(values(schema), min_size=4, max_size=8))
    return [value for value in drawn if read_schema(schema).check(value) is None]


@settings(max_examples=3 * settings().max_examples)
@given(data=st.data())
def test_valid_values_stay_valid_in_a_compatible_version(data: st.DataObject) -> None:
    old = data.draw(schemas(is_object=True))
    new = data.draw(changed(old, is_mild=data.draw(st.booleans())))
    changes = schema_changes(read_schema(old), read_schema(new))
    is_breaking = any(change.is_breaking for change in changes)
    event("breaking" if is_breaking else "compatible" if changes else "no difference")
    if not is_breaking:
        for value in right_values(data, old):
            assert read_schema(new).check(value) is None, (value, changes)


@given(data=st.data())
def test_compatibility_goes_on_over_versions(data: st.DataObject) -> None:
    """Compatibility is transitive, so comparing with the previous version is enough."""
    first = data.draw(schemas(is_object=True))
    second = data.draw(changed(first, is_mild=True))
    third = data.draw(changed(second, is_mild=True))
    read = [read_schema(one) for one in (first, second, third)]
    for one, other in ((0, 1), (1, 2)):
        assume(not any(change.is_breaking for change in schema_changes(read[one], read[other])))
    for value in right_values(data, first):
        assert read[2].check(value) is None


@given(schema=schemas())
def test_nothing_differs_from_itself(schema: Document) -> None:
    assert schema_changes(read_schema(schema), read_schema(copy.deepcopy(schema))) == ()


@given(data=st.data())
def test_verdict_equals_that_of_the_sdk(data: st.DataObject) -> None:
    schema = data.draw(schemas(is_plain=True))
    value = data.draw(st.one_of(values(schema), JSON))
    found = read_schema(schema).check(value)
    event("right" if found is None else "wrong")
    assert (found is None) == (validate_schema(schema, value) is None), found


@given(document=JSON, value=JSON)
def test_any_document_is_read_or_refused_and_any_value_is_checked(
    document: Any, value: Any
) -> None:
    for words in (document, {"type": "object", "properties": document}, {"enum": document}):
        try:
            schema = read_schema(words)
        except SchemaError:
            continue
        found = schema.check(value)
        assert found is None or found.pointer.startswith("/data")
