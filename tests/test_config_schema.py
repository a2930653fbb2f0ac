"""What is generated from the schema does not drift from it, and the examples show all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from lbproxy.control.config import load, loads, read
from lbproxy.control.paths import NAME, all_fields
from lbproxy.control.reference import json_schema, markdown
from lbproxy.control.schema import Key
from lbproxy.control.tree import read_tree
from lbproxy.control.write import resolved, to_yaml

ROOT = Path(__file__).parent.parent
SCHEMA = json_schema()


def mistakes(document: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(SCHEMA).iter_errors(document)]


def test_the_reference_in_the_docs_is_the_generated_one() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == markdown(), (
        "run: python -m lbproxy.control.reference > docs/configuration.md"
    )


def test_every_field_is_described_in_the_reference() -> None:
    text = markdown()
    for path, _, field in all_fields():
        assert f"| `{path.rpartition('.')[2]}` |" in text
        assert field.description or f"`{path}" in text, path


def test_every_link_in_the_reference_has_its_heading() -> None:
    text = markdown()
    headings = {
        "".join(c for c in line[3:].lower().replace(" ", "-") if c.isalnum() or c in "_-")
        for line in text.splitlines()
        if line.startswith("## ")
    }
    targets = {part.partition(")")[0] for part in text.split("](#")[1:]}
    assert targets
    assert targets <= headings


def test_the_json_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_no_word_in_the_json_schema_is_pydantics_own() -> None:
    known = {"$schema", "$defs", "$ref", "additionalProperties", "anyOf", "const", "default", "description", "enum",
             "examples", "exclusiveMaximum", "exclusiveMinimum", "items", "maximum", "minItems", "minLength",
             "minProperties", "minimum", "pattern", "patternProperties", "properties", "required", "title",
             "type"}  # fmt: skip

    def check(schema: Any) -> None:
        if isinstance(schema, dict):
            assert set(schema) <= known, set(schema) - known
            for word, value in schema.items():
                named = word in ("$defs", "properties", "patternProperties")
                inner = value.values() if named else value if word == "anyOf" else [value] if word == "items" else []
                for each in inner:
                    check(each)

    check(SCHEMA)


@pytest.mark.parametrize("name", ["small.yaml", "full.yaml"])
def test_the_examples_fit_the_json_schema(name: str) -> None:
    assert mistakes(yaml.safe_load((ROOT / "config" / name).read_text())) == []


@pytest.mark.parametrize("name", ["small.yaml", "full.yaml"])
def test_resolved_examples_fit_the_json_schema(name: str) -> None:
    assert mistakes(yaml.safe_load(to_yaml(resolved(read(ROOT / "config" / name))))) == []


def test_defaults_in_the_json_schema_are_what_leaving_the_field_out_gives() -> None:
    document = yaml.safe_load((ROOT / "config" / "small.yaml").read_text())
    for name, definition in (("ListenerTimeout", "listen"), ("Retry", "pools")):
        properties = SCHEMA["$defs"][name]["properties"]
        section = {field: schema["default"] for field, schema in properties.items() if "default" in schema}
        assert len(section) >= 3
        given = {**document, "listen": {"bind": "0.0.0.0:8080", "timeout": section}} if definition == "listen" else {
            **document, "pools": {"web": {**document["pools"]["web"], "retry": section}}
        }  # fmt: skip
        assert loads(yaml.safe_dump(given)) == load(ROOT / "config" / "small.yaml")
        assert mistakes(given) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["workers"], 0),
        (["workers"], "many"),
        (["drain", "timeout"], "5"),
        (["drain", "timeout"], 5),
        (["drain", "timeout"], "5 s"),
        (["pools", "web", "retry", "buffer"], 65536),
        (["pools", "web", "retry", "budget"], 0.2),
        (["pools", "web", "ring", "vnodes"], 0),
        (["pools", "web", "bounded_load", "factor"], 1),
        (["pools", "web", "bounded_load", "factor"], 125),
        (["pools", "web", "hot_keys", "mode"], "sprd"),
        (["pools", "web", "stiky"], {}),
        (["pools", "web", "backends"], []),
        (["pools", "a b"], {"backends": [{"url": "http://a"}]}),
        (["listen"], {"bind": "0.0.0.0:80", "limits": {"body_bytes": 0}}),
        (["admin", "socket"], None),
    ],
)
def test_the_json_schema_refuses_what_the_loader_refuses(path: list[str], value: object) -> None:
    document: dict[str, Any] = yaml.safe_load((ROOT / "config" / "small.yaml").read_text())
    place = document
    for step in path[:-1]:
        place = place.setdefault(step, {})
    place[path[-1]] = value
    assert mistakes(document) != []
    with pytest.raises(Exception, match=path[-1]):
        loads(yaml.safe_dump(document))


def given_paths(data: Any, prefix: str = "") -> set[str]:
    """The paths that a file gives a value to, in the form of `all_fields`."""
    found = set()
    if isinstance(data, list):
        for item in data:
            found |= given_paths(item, f"{prefix}[]")
    elif isinstance(data, dict):
        for name, value in data.items():
            path = f"{prefix}.{NAME if prefix == 'pools' else name}".removeprefix(".")
            found |= {path} | given_paths(value, path)
    return found


def test_the_full_example_has_every_field() -> None:
    root = read_tree((ROOT / "config" / "full.yaml").read_text(), {}).root
    assert root is not None
    given = {path.replace("match.", "match[].") for path in given_paths(root.plain())}
    alternatives = {f"pools.{NAME}.sticky.{name}" for name in Key.model_fields}
    assert {path for path, _, _ in all_fields()} - given - alternatives == set()
    assert {path.replace("sticky.", "sticky.keys[].") for path in alternatives} <= given
