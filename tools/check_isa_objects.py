#!/usr/bin/env python3
"""Checks the object files of the instruction-set levels (DESIGN rule 9).

    tools/check_isa_objects.py BUILD_DIR

An object of src/kernels/cpu/{generic,avx2,avx512}/ is compiled with CPU flags of its own. Had it a
weak symbol (an inline function or a template instance with external linkage), the linker could keep
that copy for the whole program, which would then fail on CPUs without those instructions. So each
level may define one global symbol, the getter that fills its table, no weak ones, and may need
nothing from outside but memcpy, memset and memmove.
"""
import pathlib
import re
import subprocess
import sys

LEVELS = ("generic", "avx2", "avx512")
LIBC = {"memcpy", "memset", "memmove"}
# What the compiler itself may reference: the GOT, sanitizer runtimes and their unwinding, coverage,
# stack protector.
RUNTIME = re.compile(
    r"_GLOBAL_OFFSET_TABLE_|__asan_|__ubsan_|__tsan_|__sanitizer_|__stack_chk_fail"
    r"|(DW\.ref\.)?__gxx_personality_v0$"
)
SANITIZER_DATA = re.compile(r"__odr_asan|__sancov|__start___sancov|__stop___sancov")


def check(level, path):
    """Complaints about one object file."""
    getter = f"tern::Fill{level.capitalize()}Table(tern::IsaTable*)"
    output = subprocess.run(["nm", "-C", str(path)], check=True, capture_output=True, text=True)
    complaints, getters = [], 0
    for line in output.stdout.splitlines():
        match = re.match(r"^[0-9a-f]* +(\S) (.*)$", line)
        if not match:
            continue
        kind, name = match.groups()
        if kind.islower() and kind not in "uvw":  # local
            continue
        if RUNTIME.match(name) or SANITIZER_DATA.match(name):
            continue
        if kind == "U":
            if name not in LIBC:
                complaints.append(f"needs {name}")
        elif kind in "uvwVW":
            complaints.append(f"has the weak symbol {name}")
        elif name == getter:
            getters += 1
        else:
            complaints.append(f"defines {name} besides {getter}")
    if getters != 1:
        complaints.append(f"does not define {getter}")
    return [f"{path}: {complaint}" for complaint in complaints]


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: check_isa_objects.py BUILD_DIR")
    complaints = []
    for level in LEVELS:
        objects = sorted(pathlib.Path(sys.argv[1]).glob(f"**/kernels/cpu/{level}/*.o"))
        if len(objects) != 1:
            complaints.append(f"level {level}: expected one object file, found {len(objects)}")
        for path in objects:
            complaints += check(level, path)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    if complaints:
        sys.exit(1)
    print(f"ISA objects: {len(LEVELS)} checked, each defines its getter and nothing else")


if __name__ == "__main__":
    main()
