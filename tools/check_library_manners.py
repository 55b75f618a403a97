#!/usr/bin/env python3
"""Fails when library code prints, exits or reads the environment (DESIGN rule 6).

usage: check_library_manners.py [ROOT]
Only src/cmd/, test files and the files named below may.
"""
import pathlib, re, sys

ROOT = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
RULES = {
    r"\b(std::)?(printf|puts|fputs|fprintf|putchar)\s*\(": {"base/check.cc", "base/args.cc"},
    r"\bstd::(cout|cerr)\b": set(),
    r"\bfmt::print\s*\(": set(),
    r"\b(std::)?(exit|_exit|quick_exit|abort|terminate)\s*\(": {"base/check.cc"},
    r"\bgetenv\s*\(": {"base/env.cc"},
    r"(?<!no )\bthrow\b": {"base/json.cc", "base/test_allocation.h"},
}
errors, files = [], 0
for path in sorted((ROOT / "src").rglob("*.cc")) + sorted((ROOT / "src").rglob("*.h")):
    name = path.relative_to(ROOT / "src").as_posix()
    if name.startswith("cmd/") or name.endswith(("_test.cc", "_main.cc")): continue
    files += 1
    for number, line in enumerate(path.read_text().splitlines(), 1):
        code = re.sub(r'"(\\.|[^"\\])*"', '""', line).split("//")[0]
        for rule, exempt in RULES.items():
            if re.search(rule, code) and name not in exempt: errors.append(f"src/{name}:{number}: {line.strip()}")
for error in errors: print(error)
print(f"{files} files, {len(errors)} errors")
sys.exit(1 if errors or files == 0 else 0)
