#!/usr/bin/env python3
"""Fails when a document names a path of this repository that does not exist.

usage: check_docs.py [ROOT]
A path is `text/in/backquotes.ext` or [a link](to/a/file) in README.md and docs/**/*.md.
"""
import pathlib, re, sys

ROOT = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
TOP = ("src/", "docs/", "tests/", "tools/", "scripts/", "fuzz/", "cmake/", ".ci/")
AREAS = tuple(p.name + "/" for p in (ROOT / "src").iterdir() if p.is_dir())
errors, checked = [], 0
for doc in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
    if not doc.exists():
        errors.append(f"{doc.name} is missing")
        continue
    text = doc.read_text()
    for path in re.findall(r"`([\w./{},*-]+)`", text):
        if "*" in path or "{" in path: continue
        if path.startswith(TOP): places = [ROOT / path]
        elif path.startswith(AREAS) and "." in path.split("/")[-1]: places = [ROOT / "src" / path]
        else: continue
        checked += 1
        if not any(p.exists() for p in places): errors.append(f"{doc.relative_to(ROOT)}: `{path}` does not exist")
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" in link: continue
        checked += 1
        if not (doc.parent / link).exists(): errors.append(f"{doc.relative_to(ROOT)}: link to {link} leads nowhere")
for error in errors: print(error)
print(f"{checked} paths, {len(errors)} errors")
sys.exit(1 if errors or checked == 0 else 0)
