#!/usr/bin/env python3
"""`tern template` against jinja2 on generated templates.

usage: templates_test.py TERN [--templates N] [--seed S]      (default 5000)

Templates are made from a grammar of what chat templates use: values, operators, filters, tests,
methods, slices, loops, macros, namespaces, whitespace control. Texts must be equal; where jinja2
fails, tern must fail. What docs/jinja.md lists as different is left out.
"""
import argparse
import concurrent.futures
import functools
import json
import pathlib
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "data/templates"))
from make_jinja_cases import INPUTS, environment, render  # noqa: E402

NAMES = [name for name in INPUTS if name != "big"]
TESTS = ["defined", "undefined", "none", "string", "number", "mapping", "iterable", "sequence", "boolean",
         "integer", "float", "true", "false", "odd", "even", "lower", "upper", "callable", "eq(7)", "ne(1)",
         "gt(2)", "in([1, 'a'])", "divisibleby(2)", "sameas(none)"]
FILTERS = ["upper", "lower", "trim", "length", "first", "last", "list", "join(', ')", "join", "string", "int",
           "float", "abs", "title", "capitalize", "replace('a', 'b')", "default('dflt')", "default('d', true)",
           "tojson", "tojson(indent=2)", "sort", "reverse", "unique", "map('upper')", "map(attribute='name')",
           "select('string')", "reject('number')", "selectattr('active')", "selectattr('age', 'gt', 26)",
           "rejectattr('tags')", "map('length')", "items", "dictsort", "escape", "e", "safe", "count", "max",
           "min", "sum", "round", "round(1)", "batch(2)", "slice(2)", "indent(2)", "wordcount", "center(9)",
           "truncate(5)", "attr('name')", "groupby('age')", "format(1)", "filesizeformat", "urlencode",
           "forceescape", "list | length", "map('string') | list", "trim('x')"]
METHODS = ["strip()", "upper()", "lower()", "split()", "split(' ')", "split('o', 1)", "startswith('H')",
           "endswith(('d', 'e'))", "replace('l', 'L')", "replace('l', '', 1)", "find('o')", "count('l')",
           "title()", "items()", "keys()", "values()", "get('a')", "get('zz', 3)", "index(3)", "lstrip('H')",
           "rstrip()", "splitlines()", "isdigit()", "isalpha()", "join(['a', 'b'])", "rsplit(' ', 1)",
           "partition(' ')", "zfill(6)", "ljust(8)", "center(12, '*')", "removeprefix('He')", "swapcase()",
           "capitalize()", "append(1)", "format(1, 2)", "isupper()", "rfind('l')", "islower()", "isspace()"]


class Lazy:
    """A lazy filter's generator. Its text would be an address, which nothing else can be compared with."""
    printed = False

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.items)

    def __repr__(self):
        Lazy.printed = True
        return "<generator object>"


def lazy(function):
    @functools.wraps(function)  # what jinja2 passes to it is an attribute
    def call(*args, **kwargs):
        result = function(*args, **kwargs)
        return Lazy(result) if hasattr(result, "__next__") else result
    return call


class Maker:
    def __init__(self, rng):
        self.rng = rng
        self.locals = []

    def pick(self, items):
        return self.rng.choice(items)

    def atom(self):
        kind = self.rng.random()
        if kind < 0.5 or (kind < 0.6 and not self.locals):
            return self.pick(NAMES + ["missing"])
        if kind < 0.6:
            return self.pick(self.locals)
        return self.pick(["1", "0", "-3", "2.5", "1e3", "'a'", "'Hello'", "\"q'q\"", "'\\n'", "''", "true", "none",
                          "[]", "{}", "[1, 'x', none]", "{'k': 1, 'j': [2]}", "(1, 2)", "(1,)", "'\\u00e9'",
                          "range(3)", "namespace(v=1)", "dict(a=1)", "[[1, 2], [3]]"])

    def expr(self, depth=2):
        rng = self.rng
        if depth == 0 or rng.random() < 0.2:
            return self.atom()
        kind = rng.random()
        e = lambda: self.expr(depth - 1)  # noqa: E731
        if kind < 0.25:
            return f"{e()} | {self.pick(FILTERS)}"
        if kind < 0.37:
            return f"({e()}) {self.pick(['+', '-', '*', '/', '//', '%', '~', '**'])} {self.pick([e(), '2', '3'])}"
        if kind < 0.49:
            return f"{e()} {self.pick(['==', '!=', '<', '>', '<=', '>=', 'in', 'not in', 'and', 'or'])} {e()}"
        if kind < 0.59:
            return f"{e()} is {self.pick(['', 'not '])}{self.pick(TESTS)}"
        if kind < 0.71:
            return f"({e()}).{self.pick(METHODS)}"
        if kind < 0.79:
            return f"({e()}){self.pick(['[0]', '[-1]', '[1:]', '[::-1]', '[:2]', '.a', '.name', '[n]', '[s]', '[1:-1:2]', '.a.c'])}"
        if kind < 0.86:
            return f"({e()} if {e()}" + (f" else {e()})" if rng.random() < 0.7 else ")")
        if kind < 0.9:
            return f"not {e()}"
        if kind < 0.95:
            return f"[{e()}, {e()}]"
        return f"{{'k': {e()}, {self.pick(['n', '1', 's'])}: {e()}}}"

    def tag(self, inside):
        rng = self.rng
        return "{%" + rng.choice(["", "", "", "-", "+"]) + f" {inside} " + rng.choice(["", "", "", "-"]) + "%}"

    def text(self):
        return self.pick(["a", " ", "\n", "\n  ", "x \n", "  \n\n", "<|im|>", "\t", "b {", "} c", ""])

    def body(self, depth, in_loop=False):
        return "".join(self.statement(depth, in_loop) for _ in range(self.rng.randint(1, 3)))

    def statement(self, depth, in_loop):
        rng = self.rng
        kind = rng.random()
        if depth == 0 or kind < 0.4:
            out = "{{" + rng.choice(["", "", "-"]) + f" {self.expr()} " + rng.choice(["", "", "-"]) + "}}"
            return self.text() + out + self.text()
        if kind < 0.55:
            text = self.tag(f"if {self.expr(2)}") + self.body(depth - 1, in_loop)
            if rng.random() < 0.3:
                text += self.tag(f"elif {self.expr(2)}") + self.body(depth - 1, in_loop)
            if rng.random() < 0.5:
                text += self.tag("else") + self.body(depth - 1, in_loop)
            return text + self.tag("endif")
        if kind < 0.75:
            name = self.pick(["i", "k", "m"])
            target = self.pick([name, name, f"{name}, v"])
            condition = f" if {self.expr(1)}" if rng.random() < 0.2 else ""
            outer, self.locals = self.locals, self.locals + [name, "loop.index0", "loop.first", "loop.last", "loop.length", "loop.previtem",
                            "loop.cycle('p', 'q')"]
            text = self.tag(f"for {target} in {self.expr(2)}{condition}") + self.body(depth - 1, True)
            if rng.random() < 0.2:
                text += self.tag(f"if {self.expr(1)}") + self.tag(self.pick(["break", "continue"])) + self.tag("endif")
            self.locals = outer
            if rng.random() < 0.3:
                text += self.tag("else") + self.body(depth - 1, in_loop)
            return text + self.tag("endfor")
        if kind < 0.87:
            name = self.pick(["a", "b2", "ns"])
            text = self.tag(f"set {name} = {self.expr(2)}")
            self.locals.append(name)
            if rng.random() < 0.2:
                text += self.tag("set q = namespace(v=0)") + self.tag(f"set q.v = {self.expr(1)}") + "{{ q.v }}"
            return text
        if kind < 0.91:
            return self.tag("set blk") + self.body(depth - 1) + self.tag("endset") + "{{ blk }}"
        if kind < 0.96:
            outer, self.locals = self.locals, self.locals + ["p"]
            body = self.body(depth - 1)
            self.locals = outer
            return (self.tag("macro f(p, r=2)") + body + self.tag("endmacro") +
                    "{{ f(" + self.pick(["", "1", "s", "xs, 3", "r=4", "1, 2, 3"]) + ") }}")
        return "{# " + self.pick(["c", "{{ x }}", ""]) + " #}" + self.text()

    def template(self):
        return self.body(2)


def tern_render(tern, folder, index, template):
    path = pathlib.Path(folder) / f"{index}.jinja"
    path.write_text(template, encoding="utf-8", newline="")
    done = subprocess.run([tern, "template", "--template", str(path)], capture_output=True, text=True,
                          input=json.dumps({**INPUTS, "messages": []}) + "\n")
    path.unlink()
    if done.returncode == 0:
        return json.loads(done.stdout), ""
    assert done.returncode == 1 and done.stderr.count("\n") == 1, (template, done)
    return None, done.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tern")
    parser.add_argument("--templates", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    env = environment()
    env.globals["add_generation_prompt"] = False  # what tern gives when it is absent
    env.globals["messages"] = []
    env.globals["tools"] = env.globals["documents"] = None
    for name in ("map", "select", "reject", "selectattr", "rejectattr", "batch", "slice", "unique", "items", "reverse"):
        env.filters[name] = lazy(env.filters[name])
    rng = random.Random(args.seed)
    templates, cases = [], []
    while len(templates) < args.templates:
        # Most of what the grammar makes fails; a fifth of what is tested may.
        template = Maker(rng).template()
        if render(env, template) is None and rng.random() < 0.95:
            continue
        if templates and rng.random() < 0.5:
            template = rng.choice(templates) + template
        templates.append(template)
        Lazy.printed = False
        want = render(env, template)
        # Methods and the like print addresses too.
        if want is None or not (Lazy.printed or " at 0x" in want.lower()):
            cases.append((template, want))
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        gots = list(pool.map(lambda c: tern_render(args.tern, folder, c[0], c[1][0]), enumerate(cases)))
    wrong = [(t, w, g) for (t, w), g in zip(cases, gots) if w != g[0]]
    failing = sum(w is None for _, w in cases)
    print(f"{len(cases)} templates, {failing} of them fail in jinja2; {len(wrong)} differ")
    for template, want, (got, error) in sorted(wrong, key=lambda case: len(case[0]))[:40]:
        print(f"  {template!r}\n    jinja2 {want!r:.500}\n    tern   {got!r:.500} {error.strip()}")
    sys.exit(1 if wrong else 0)


main()
