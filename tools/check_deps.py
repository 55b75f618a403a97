#!/usr/bin/env python3
"""Fails when a file of src/ includes an area that tools/deps.txt does not allow.

usage: check_deps.py [ROOT]
Third-party headers stay behind one wrapper each: the second table below.
"""
import pathlib, re, sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
if ROOT.is_file(): ROOT = ROOT.parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)

# header prefix -> the files or folders of src/ that may include it
WRAPPERS = {
    "boost/": ["net/"],
    "openssl/": ["net/", "base/sha256.cc"],
    "nlohmann/": ["base/json.h"],
    "spdlog/": ["base/log.cc"],
    "CLI/": ["base/args.cc"],
    "yaml-cpp/": ["base/args.cc"],
    "prometheus/": ["base/metrics.cc"],
    "xxh": ["base/hash.cc"],
    "utf8proc": ["text/", "jinja/unicode"],
    "pcre2": ["text/", "checkpoint/module_pattern.cc"],
    "simdjson": ["checkpoint/safetensors.cc", "text/tokenizer_json.cc"],
    "immintrin.h": ["kernels/", "base/thread_pool.cc", "engine/logit_math.cc"],
}


def allowed():
    table = {}
    for line in (ROOT / "tools/deps.txt").read_text().splitlines():
        line = line.split("#")[0].strip()
        if not line: continue
        area, deps = line.split(":")
        table[area] = {}
        for dep in deps.split():
            name, _, headers = dep.partition("{")
            table[area][name] = set(headers.rstrip("}").split(",")) if headers else None
    return table


def main():
    table, errors, files = allowed(), [], 0
    src = ROOT / "src"
    areas = {p.name for p in src.iterdir() if p.is_dir()}
    for path in sorted(src.rglob("*")):
        if path.suffix not in (".cc", ".h"): continue
        files += 1
        name = path.relative_to(src).as_posix()
        area = name.split("/")[0]
        if area not in table:
            errors.append(f"{name}: area '{area}' is not in tools/deps.txt")
            continue
        for kind, header in INCLUDE.findall(path.read_text()):
            if kind == "<":
                for prefix, users in WRAPPERS.items():
                    if header.startswith(prefix) and not any(name.startswith(u) for u in users) and not name.endswith("_test.cc"):
                        errors.append(f"{name}: <{header}> belongs behind {', '.join(users)}")
                continue
            if not (src / header).is_file():
                errors.append(f'{name}: "{header}" is not a file of src/ (includes are rooted at src/)')
                continue
            target = header.split("/")[0]
            if target == area or "*" in table[area]: continue
            if target not in table[area]:
                errors.append(f"{name}: {area} may not include {target} ({header})")
            elif table[area][target] is not None and pathlib.Path(header).stem not in table[area][target]:
                errors.append(f"{name}: of {target}, {area} may include only {', '.join(sorted(table[area][target]))} ({header})")
    for error in errors: print(error)
    print(f"{files} files, {len(areas)} areas, {len(errors)} errors")
    return 1 if errors or files == 0 else 0


sys.exit(main())
