#!/usr/bin/env python3
"""The checks of tools/ can fail: each is run on a small tree that breaks its rule, and on one that keeps it."""
import pathlib, shutil, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def tree(files):
    root = pathlib.Path(tempfile.mkdtemp())
    for name, text in {"README.md": "`src/base/a.h`\n", "src/base/a.h": "", "tools/deps.txt": "base:\nkv: base\ncmd: *\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def run(check, files):
    root = tree(files)
    code = subprocess.run([sys.executable, ROOT / "tools" / check, root], capture_output=True, text=True).returncode
    shutil.rmtree(root)
    return code


CASES = [
    ("check_deps.py", {"src/kv/p.h": '#include "base/a.h"\n'}, 0),
    ("check_deps.py", {"src/kv/p.h": "", "src/base/b.h": '#include "kv/p.h"\n'}, 1),
    ("check_deps.py", {"src/kv/p.h": "#include <boost/asio.hpp>\n"}, 1),
    ("check_deps.py", {"src/unknown/p.h": ""}, 1),
    ("check_sizes.py", {"src/base/b.cc": "\n" * 800}, 0),
    ("check_sizes.py", {"src/base/b.cc": "\n" * 801}, 1),
    ("check_sizes.py", {"src/base/b.cc": "\n" * 801, "tools/size_exceptions.txt": "src/base/b.cc\n"}, 0),
    ("check_sizes.py", {"tools/size_exceptions.txt": "src/base/gone.cc\n"}, 1),
    ("check_docs.py", {}, 0),
    ("check_docs.py", {"docs/a.md": "`base/gone.h`\n"}, 1),
    ("check_docs.py", {"docs/a.md": "[x](gone.md)\n"}, 1),
    ("check_library_manners.py", {"src/base/b.cc": 'int f() { return g("printf(x)"); }\n'}, 0),
    ("check_library_manners.py", {"src/base/b.cc": "void f() { std::exit(1); }\n"}, 1),
    ("check_library_manners.py", {"src/base/b.cc": 'void f() { std::getenv("A"); }\n'}, 1),
    ("check_library_manners.py", {"src/cmd/b.cc": "void f() { std::exit(1); }\n"}, 0),
]
bad = [(check, files) for check, files, code in CASES if run(check, files) != code]
for check, files in bad: print(f"{check} gave the wrong answer on {files}")
print(f"{len(CASES) - len(bad)} passed, {len(bad)} failed")
sys.exit(1 if bad else 0)
