#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Holds JSON lines against a definition of a schema: as much of JSON Schema as ours use.

    python3 tests/json_schema.py SCHEMA DEFINITION <LINES     # fails with what does not fit
    python3 tests/json_schema.py --same A B                   # the same schema, but for descriptions
"""
import json
import re
import sys

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def is_type(value, name):
    if name == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


def failure_of(value, schema, root, where):
    try:
        check(value, schema, root, where)
    except AssertionError as failure:
        return str(failure)
    return None


def check(value, schema, root, where):
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    if "oneOf" in schema:
        failures = [failure_of(value, one, root, where) for one in schema["oneOf"]]
        assert failures.count(None) == 1, f"{where}: fits {failures.count(None)} of oneOf: {failures}"
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    assert not names or any(is_type(value, name) for name in names), f"{where}: {value!r} is no {names}"
    assert "enum" not in schema or value in schema["enum"], f"{where}: {value!r} is not of {schema['enum']}"
    if is_type(value, "number"):
        assert schema.get("minimum", value) <= value <= schema.get("maximum", value), f"{where}: {value} is out of range"
    if isinstance(value, list):
        for i, item in enumerate(value):
            check(item, schema.get("items", {}), root, f"{where}[{i}]")
    if isinstance(value, dict):
        for key in schema.get("required", []):
            assert key in value, f"{where}: there is no {key}"
        for key, item in value.items():
            fits = [schema["properties"][key]] if key in schema.get("properties", {}) else [
                s for pattern, s in schema.get("patternProperties", {}).items() if re.search(pattern, key)]
            more = schema.get("additionalProperties", {})
            assert fits or more is not False, f"{where}: {key} is not in the schema"
            for one in fits or [more if isinstance(more, dict) else {}]:
                check(item, one, root, f"{where}.{key}")


def plain(schema):
    if isinstance(schema, list):
        return [plain(x) for x in schema]
    if isinstance(schema, dict):
        return {k: plain(v) for k, v in schema.items() if k != "description" or not isinstance(v, str)}
    return schema


def main():
    if sys.argv[1] == "--same":
        a, b = (plain(json.load(open(path))) for path in sys.argv[2:4])
        assert a == b, f"{sys.argv[2]} is not {sys.argv[3]}"
        return
    root = json.load(open(sys.argv[1]))
    lines = [json.loads(line) for line in sys.stdin if line.strip()]
    assert lines, "no lines"
    for i, line in enumerate(lines):
        check(line, root["$defs"][sys.argv[2]], root, f"line {i + 1}")


main()
