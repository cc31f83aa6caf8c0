# SPDX-License-Identifier: MIT
"""Compares the structures of python/nalagen/_library.py with include/nalagen.h: members, sizes, offsets, numbers.

    python3 tests/python_header.py include/nalagen.h     # needs a C compiler
"""
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import nalagen
from nalagen import _errors, _library


def members(text, name):
    """Names of the members of a structure, as the header has them."""
    body = re.search(r"typedef struct %s \{(.*?)\n\} %s;" % (name, name), text, re.S).group(1)
    body = re.sub(r"struct \{.*?\}", "struct", body, flags=re.S)
    body = re.sub(r"\(\*(\w+)\)\([^)]*\)", r"\1", body)
    return [re.search(r"(\w+)\s*(\[[^]]*\])*$", one).group(1)
            for line in body.split(";") if line.strip() for one in line.strip().split(",")]


def layout_program(header):
    """C that prints what Python says, as JSON."""
    lines = ['#include "%s"' % os.path.abspath(header), "#include <stdio.h>", "int main(void) {", 'printf("{\\n");']
    for name, kind in _library.STRUCTURES.items():
        lines.append(f'printf("\\"{name}\\": [%zu", sizeof({name}));')
        for member, _ in kind._fields_:
            lines.append(f'printf(", [\\"{member}\\", %zu, %zu]", offsetof({name}, {member}), '
                         f'sizeof((({name} *)0)->{member}));')
        lines.append('printf("],\\n");')
    lines.append(f'printf("\\"seconds\\": [%zu", sizeof(((nl_evaluation *)0)->seconds));')
    for member, _ in _library.Seconds._fields_:
        lines.append(f'printf(", [\\"{member}\\", %zu, 8]", offsetof(nl_evaluation, seconds.{member}) - '
                     'offsetof(nl_evaluation, seconds));')
    lines.append('printf("],\\n\\"numbers\\": [%d, %d, %d, %d, %d, %d], \\"unconditional\\": %.17g, '
                 '\\"version\\": \\"%s\\"}\\n", NL_METRICS, NL_OK, NL_CANCELLED, NL_ROUNDING_DIT, NL_ROUNDING_ADM, '
                 'NL_LOG_DEBUG, NL_CFG_UNCONDITIONAL, NL_VERSION);')
    return "\n".join(lines + ["return 0; }"])


def described(kind):
    return [ctypes.sizeof(kind)] + [[m, getattr(kind, m).offset, getattr(kind, m).size] for m, _ in kind._fields_]


def main():
    header = sys.argv[1]
    text = re.sub(r"/\*.*?\*/", "", open(header).read(), flags=re.S)
    for name, kind in _library.STRUCTURES.items():
        ours, theirs = [m for m, _ in kind._fields_], members(text, name)
        assert ours == theirs, (f"{name}: the header's members are {theirs}, python/nalagen/_library.py has {ours}: "
                                "write them there, too")
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "layout.c"), os.path.join(folder, "layout")
        open(source, "w").write(layout_program(header))
        subprocess.run([os.environ.get("CC", "cc"), source, "-o", program], check=True)
        layout = json.loads(subprocess.run([program], check=True, stdout=subprocess.PIPE).stdout)
    for name, kind in list(_library.STRUCTURES.items()) + [("seconds", _library.Seconds)]:
        assert layout[name] == described(kind), (name, layout[name], described(kind))
    assert layout["numbers"] == [_library.METRICS, _library.OK, _library.CANCELLED, _library.ROUNDINGS["dit"],
                                 _library.ROUNDINGS["adm"], 3], layout["numbers"]
    assert layout["unconditional"] == _library.CFG_UNCONDITIONAL
    assert layout["version"] == nalagen.__version__
    enum = re.search(r"typedef enum nl_status \{(.*?)\}", text, re.S).group(1)
    statuses = {int(n) for n in re.findall(r"=\s*(\d+)", enum)} - {0}
    assert statuses == set(_errors.BY_STATUS), (statuses, set(_errors.BY_STATUS))
    declared = set(re.findall(r"NL_API [^;]*?(nl_\w+)\(", text))
    assert set(_library.FUNCTIONS) <= declared, set(_library.FUNCTIONS) - declared


main()
