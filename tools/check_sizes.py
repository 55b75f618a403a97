#!/usr/bin/env python3
"""Fails when a source file is longer than 800 lines and not named in tools/size_exceptions.txt.

usage: check_sizes.py [ROOT]
"""
import pathlib, sys

LIMIT = 800
ROOT = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
listed = ROOT / "tools/size_exceptions.txt"
exceptions = {l.split("#")[0].strip() for l in listed.read_text().splitlines()} - {""} if listed.exists() else set()
errors, sizes, used = [], [], set()
for folder in ("src", "fuzz", "tests", "tools"):
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix not in (".cc", ".h", ".inc", ".py", ".sh"): continue
        name, lines = path.relative_to(ROOT).as_posix(), path.read_bytes().count(b"\n")
        sizes.append(lines)
        if lines <= LIMIT: continue
        if name in exceptions: used.add(name)
        else: errors.append(f"{name}: {lines} lines, the limit is {LIMIT}")
errors += [f"tools/size_exceptions.txt: {name} is not over {LIMIT} lines, take it off the list" for name in sorted(exceptions - used)]
for error in errors: print(error)
sizes.sort()
print(f"{len(sizes)} files, median {sizes[len(sizes) // 2]} lines, p90 {sizes[len(sizes) * 9 // 10]}, {len(errors)} errors")
sys.exit(1 if errors else 0)
