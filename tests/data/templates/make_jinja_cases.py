#!/usr/bin/env python3
"""Writes jinja_cases.json: small templates and what jinja2 makes of them. The templates are those
below and the expressions of jinja_expressions.txt.

    pip install jinja2==3.1.6
    python3 tests/data/templates/make_jinja_cases.py

The environment is the one that transformers builds for chat templates (chat_template_utils.py,
5.24): an immutable sandbox, trim_blocks, lstrip_blocks, loop controls, its tojson and globals,
the {% generation %} tag. Each case is [group, template, inputs, output], with null as the output of
a template that fails to compile or to render.
"""

import json
import os
import warnings

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

warnings.simplefilter("ignore")

INPUTS = {
    "n": 7, "f": 2.5, "s": "Hello World", "t": True, "no": False, "nil": None, "empty": "",
    "xs": [3, 1, 2], "words": ["banana", "Apple", "cherry", "apple"], "none_list": [],
    "d": {"b": 1, "a": {"c": [1, 2, {"k": "v"}]}, "items": "shadowed", "C": None},
    "users": [
        {"name": "Zoe", "age": 30, "tags": ["x"], "active": True},
        {"name": "adam", "age": 25, "tags": [], "active": False},
        {"name": "Bea", "age": 30, "tags": ["y", "z"], "active": True, "nick": "B"},
    ],
    "html": "<a href=\"x\">'&'</a>", "uni": "na\u00efve \u4f60\u597d \U0001f600", "multi": "one\n  two\n\nthree",
    "big": 9007199254740993, "neg": -7, "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}]}, {"v": 3}],
}

GROUPS = {}


def group(name, *templates):
    GROUPS.setdefault(name, []).extend(templates)


def read_expressions(path):
    name = None
    with open(path, encoding="utf-8") as lines:
        for line in map(str.strip, lines):
            if line.startswith("[") and line.endswith("]") and line[1:-1].isidentifier():
                name = line[1:-1]
            elif line and not line.startswith("#"):
                group(name, "{{ " + line + " }}")


group("whitespace",
      "a {% if true %} b {% endif %} c",
      "a\n{% if true %}\nb\n{% endif %}\nc",
      "a\n  {% if true %}\n  b\n  {% endif %}\nc",
      "a\n  {%- if true -%}\n  b\n  {%- endif -%}\nc",
      "a\n  {%+ if true %}\n  b\n  {%+ endif +%}\nc",
      "  {{ 1 }}\n  {{- 2 }}  {{ 3 -}}  \n 4",
      "  {{ 1 }}",
      "x  {{- 1 -}}  y",
      "{% set x = 1 %}\n{{ x }}\n",
      "{% set x = 1 %}\n\n{{ x }}\n\n",
      "{% set x = 1 -%}\n\n  {{ x }}",
      "{% set x = 1 +%}\n{{ x }}",
      "a{# comment #}b",
      "a\n{# comment #}\nb",
      "a\n  {# comment #}\nb",
      "a\n  {#- comment -#}  \nb",
      "a {#+ c +#}\nb",
      "a {#- -#} b",
      "a {#-#} b",
      "a {##} b",
      "{# {{ x }} {% if %} #}z",
      "line\n",
      "line\n\n",
      "\n",
      "",
      "a\r\nb\rc\r\n",
      "{{ 'a\r\nb' }}",
      "\u00a0 {%- if true %}x{% endif -%} \u2003 y",
      "{% raw %}{{ not }} {% if %}{% endraw %}",
      "a\n  {% raw %}\n  b\n  {% endraw %}\nc",
      "a {%- raw -%}  b  {%- endraw -%} c",
      "a {% raw %} {%- endraw %} c",
      "{% for x in xs %}\n{{ x }}\n{% endfor %}\nend",
      "{% for x in xs -%}\n{{ x }}\n{%- endfor %}\nend",
      "{% for x in xs %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}",
      "    {% if true %}x{% endif %}\n    {% if true %}y{% endif %}\n",
      "x    {% if true %}y{% endif %}",
      "\t{% if true %}\n\ty\n\t{% endif %}\n",
      "{%if true%}tight{%endif%}",
      "{{1}}{{2}}",
      "{ { 1 } } {% raw %}{%{% endraw %} {",
      "a {",
      "a }} b %} c #}",
      "{{ '}}' }}",
      "{{ '%}' }}{% set x = '%}' %}{{ x }}",
      "{{ {'a': {'b': 1}} }}",
      "{{ {'a': {'b': 1}}.a.b}}",
      "{%- set x = [1,\n 2,\n 3] -%}\n{{ x\n | length }}",
      "{% set x = 1 %}   {% set y = 2 %}   {{ x + y }}")

group("strings", "{{ 'a\\\nb' }}")

group("statements",
      "{% for x in xs %}{{ x }}{% continue %}{% else %}none{% endfor %}",
      "{% for x in xs %}{{ x }}{% break %}{% else %}none{% endfor %}",
      "{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% else %}none{% endfor %}",
      "{% for x in xs %}{% if loop.last %}{% break %}{% endif %}{{ x }}{% else %}none{% endfor %}",
      "{% for x in xs if x > 5 %}{{ x }}{% else %}none{% endfor %}",
      "{% for x in xs %}{{ loop.changed(loop) }}{% endfor %}",
      "{% for x in xs %}{% for y in xs %}{% continue %}{% else %}-{% endfor %}{% else %}none{% endfor %}",
      "{% if n > 5 %}big{% else %}small{% endif %}",
      "{% if n > 10 %}a{% elif n > 6 %}b{% elif n > 5 %}c{% else %}d{% endif %}",
      "{% if missing %}a{% elif nil %}b{% endif %}none",
      "{% if n is odd and not no %}x{% endif %}",
      "{% if xs %}nonempty{% endif %}{% if none_list %}no{% endif %}",
      "{% if (n, 1) %}tuple{% endif %}",
      "{% set x = 5 %}{{ x }}",
      "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
      "{% set (a, (b, c)) = [1, [2, 3]] %}{{ a }}{{ b }}{{ c }}",
      "{% set a, b = 'xy' %}{{ a }}{{ b }}",
      "{% set x = 1, %}{{ x }}",
      "{% set x %}block {{ n }}{% endset %}[{{ x }}]",
      "{% set x | upper %}block{% endset %}{{ x }}",
      "{% set x | trim | replace('a', 'b') %}  aa {% endset %}[{{ x }}]",
      "{% set x %}<b>{% endset %}{{ x ~ '&' }}{{ x is string }}",
      "{% set ns = namespace(n=0) %}{% for x in xs %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}",
      "{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b %}B{% endset %}{{ ns.a }}{{ ns.b }}",
      "{% set ns = namespace(a=1) %}{% set x, ns.a = 5, 6 %}{{ x }}{{ ns.a }}",
      "{% set ns = namespace(x=[]) %}{% set ns.x = ns.x + [1] %}{{ ns.x }}",
      "{% set ns = namespace(a=1) %}{% set ns.me = 2 %}{{ ns }}",
      "{% filter upper %}abc {{ s }}{% endfilter %}",
      "{% filter replace('a', 'b') | upper %}banana{% endfilter %}",
      "{% filter trim %}\n  x  \n{% endfilter %}|",
      "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
      "{% set a = 1 %}{% with a = 2 %}{{ a }}{% set a = 3 %}{{ a }}{% endwith %}{{ a }}",
      "{% with a = 1, b = a %}{{ b is defined }}{% endwith %}",
      "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}",
      "{% generation %}hello {{ n }}{% endgeneration %} bye",
      "{% generation %}\nhello\n{% endgeneration %}\nbye",
      "{% block b %}in {{ n }}{% endblock %}",
      "{% block b %}in{% endblock b %}",
      "{% set q = 1 %}{% block b %}{{ q }}{% endblock %}",
      "{% for i in xs %}{% block b scoped %}{{ i }}{% endblock %}{% endfor %}",
      "{% print n %}{% print n, s %}",
      "{% if true: %}colon{% endif %}",
      "{% for c in 'héy' %}[{{ c }}]{% endfor %}",
      "{% for k in d %}{{ k }} {% endfor %}",
      "{% for k, v in d.a.items() %}{{ k }}={{ v }};{% endfor %}",
      "{% for k, v in d.a | items %}{{ k }}={{ v }};{% endfor %}",
      "{% for k, v in {'x': 1, 'y': 2} | dictsort %}{{ k }}={{ v }};{% endfor %}",
      "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
      "{% for x in [] %}x{% else %}empty{% endfor %}",
      "{% for x in missing %}x{% else %}empty{% endfor %}",
      "{% for x in xs %}{{ x }}{% else %}empty{% endfor %}",
      "{% for x in xs if x > 1 %}{{ x }}{{ loop.index }}{{ loop.last }} {% endfor %}",
      "{% for x in xs if x > 10 %}x{% else %}none{% endfor %}",
      "{% for x in xs if x is odd %}{{ loop.length }}{% endfor %}",
      "{% set ns = namespace(stop=false) %}{% for x in xs if not ns.stop %}{{ x }}{% set ns.stop = true %}{% endfor %}",
      "{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
      "{% for x in xs %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}",
      "{% for x in xs %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
      "{% for x in xs %}{{ loop.cycle('a', 'b') }}{% endfor %}",
      "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}",
      "{% for x in xs | map('string') %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}",
      "{% for x in xs | map('string') %}{{ x }}{{ loop.nextitem }} {% endfor %}",
      "{% for x in xs | reverse %}{{ x }}{{ loop.last }}{% endfor %}",
      "{% for x in xs %}{% for y in xs %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}",
      "{% for x in xs %}{% set outer = loop %}{% for y in [1] %}{{ outer.index }}{% endfor %}{% endfor %}",
      "{% for x in tree recursive %}{{ x.v }}@{{ loop.depth }}{% if x.kids %}({{ loop(x.kids) }}){% endif %}{% endfor %}",
      "{% for x in xs %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
      "{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
      "{% for x in xs %}{% for y in xs %}{% if y == 1 %}{% break %}{% endif %}{{ y }}{% endfor %}|{% endfor %}",
      "{% for x in range(3) %}{{ x }}{% endfor %}",
      "{% for i in range(n, -1, -3) %}{{ i }} {% endfor %}",
      "{% for x in xs, words %}{{ x | length }}{% endfor %}",
      "{% for u in users %}{{ u.name }}:{{ u.tags | join('/') }};{% endfor %}",
      "{% for g in users | groupby('age') %}{{ g.grouper }}:{{ g.list | length }} {% endfor %}",
      "{% for age, us in users | groupby('age') %}{{ age }}:{{ us | map(attribute='name') | join(',') }} {% endfor %}",
      "{% for row in xs | batch(2) %}{{ row }}{% endfor %}",
      "{% set g = xs | map('string') %}{{ g | join }}[{{ g | join }}]",
      "{% set g = xs | select %}{{ g | first }}{{ g | list }}",
      "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.reset() }}{{ c.current }}",
      "{% set j = joiner('|') %}{{ j() }}a{{ j() }}b{{ j() }}c",
      "{% set j = joiner() %}{{ j() }}a{{ j() }}b")

group("scoping",
      "{% set x = 1 %}{% for i in xs %}{% set x = i %}{% endfor %}{{ x }}",
      "{% set x = 1 %}{% for i in xs %}{{ x }}{% set x = i %}{{ x }} {% endfor %}{{ x }}",
      "{% for i in xs %}{% if i == 3 %}{% set y = i %}{% endif %}{{ y }}{% endfor %}[{{ y }}]",
      "{% if true %}{% set x = 1 %}{% endif %}{{ x }}",
      "{% for i in xs %}{% endfor %}{{ i is defined }}{{ loop is defined }}",
      "{% set i = 'o' %}{% for i in xs %}{{ i }}{% endfor %}{{ i }}",
      "{% set x = 1 %}{% macro m() %}{{ x }}{% set x = 2 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}",
      "{% macro m() %}{{ x }}{% endmacro %}{% set x = 5 %}{{ m() }}",
      "{% set x = 1 %}{% macro m(x) %}{{ x }}{% endmacro %}{{ m(2) }}{{ x }}",
      "{% macro m() %}{{ n }}{% endmacro %}{{ m() }}",
      "{% for i in xs %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
      "{% for i in xs %}{% macro m() %}{{ loop is defined }}{% endmacro %}{{ m() }}{% endfor %}",
      "{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y is defined }}",
      "{% filter upper %}{% set z = 'q' %}{{ z }}{% endfilter %}{{ z is defined }}",
      "{% set n = n + 1 %}{{ n }}",
      "{% set s = s | upper %}{{ s }}",
      "{% set xs = xs[1:] %}{% for x in xs %}{{ x }}{% endfor %}",
      "{% set range = 5 %}{{ range }}",
      "{% for n in xs %}{{ n }}{% endfor %}{{ n }}",
      "{% for x in xs %}{% set loop = 5 %}{{ loop }}{% endfor %}",
      "{% with n = n + 1 %}{{ n }}{% endwith %}{{ n }}",
      "{% set ns = namespace(x=1) %}{% macro m() %}{% set ns.x = ns.x + 1 %}{% endmacro %}{{ m() }}{{ m() }}{{ ns.x }}",
      "{% for i in xs %}{% set q = i %}{% else %}{% endfor %}{{ q is defined }}",
      "{% for i in [] %}{% else %}{% set q = 1 %}{{ q }}{% endfor %}{{ q is defined }}")

# Generators fail when they are read, not when they are made.
group("filters_sequence",
      *("{% set x = " + e + " %}made" for e in (
          "n | unique", "n | batch(2)", "n | slice(2)", "xs | slice(0)", "xs | slice('x')", "xs | batch('x', 0)",
          "n | items", "n | map('upper')", "n | select", "missing | batch(2)")),
      *("{{ " + e + " | list }}" for e in (
          "n | unique", "n | batch(2)", "n | slice(2)", "t | slice(2)", "xs | slice(0)", "xs | slice('x')",
          "xs | slice(2.0)", "xs | slice(-1)", "xs | slice(true)", "xs | batch('x')", "xs | batch('x', 0)",
          "xs | batch(2.0)", "xs | batch(2.0, 0)", "xs | batch(0)", "xs | batch(-1, 0)", "xs | batch(true)",
          "missing | batch(2)", "missing | slice(2)", "missing | unique", "[[1], [1]] | unique")))

# Of whatever has a length.
group("filters_text",
      *("{{ " + e + " }}" for e in (
          "d | truncate(5)", "xs | truncate(5)", "xs | truncate(3, leeway=0)", "xs | truncate(3, leeway=0) is sequence",
          "range(20) | truncate(5)", "users | truncate(3, true, leeway=0)", "(1, 2, 3, 4) | truncate(3, leeway=0)",
          "(1, 2, 3, 4) | truncate(3, true, leeway=0)", "n | truncate(5)", "missing | truncate(5)", "nil | truncate(5)",
          "[1, 2, 3, 4] | truncate(3, true, '', 0)", "(xs | map('string')) | truncate(5)")))

# What Python takes for a mapping need not be used up.
group("strings",
      *("{{ " + e + " }}" for e in (
          "'a' % missing", "'a' % [1]", "'a' % {}", "'a' % range(3)", "'a' % (1,)", "'a' % ()", "'a' % 1", "'a' % 'b'",
          "'a' % nil", "'%s' % missing", "'%(a)s' % missing", "'%(a)s' % range(3)", "'%d' % missing", "'a' % d",
          "'a' % namespace(a=1)", "'a' % (xs | map('string'))", "'%s%s' % missing")))

# A slice is Python's own, but for what jinja2 computes when it compiles.
group("attributes",
      *("{{ " + e + " }}" for e in (
          "t[1:]", "n[1:]", "nil[1:]", "d[1:]", "missing[1:]", "(xs | map('string'))[1:]", "range(5)[1:]",
          "true[1:]", "(1)[:2]", "none[1:]", "{}[1:]", "{'a': 1}[1:]", "[1, 2][1:]", "'abc'[1:]", "'abc'['x':]",
          "[1, 2]['x':]", "true[1:] ~ n", "true[1:] ~ 1", "[true[1:]]", "[true[1:], n]", "(true[1:] | default('x')) ~ n",
          "true[1:] is defined", "n if true[1:] else 2", "1 if true[1:] else 2", "true[1:].a", "true[1:] + 1",
          "[true[1:] is defined, n]", "(true[1:] or 3) ~ n", "true[n:]", "true[1:] | string", "true[1:] | string ~ n",
          "(1 if false)[1:]", "(true | string)[1:]")),
      "{% set x = true[1:] %}made", "{% set x = true[1:] | default(1) %}{{ x }}",
      "{% set x = [true[1:]] %}made", "{% if true[1:] %}a{% else %}b{% endif %}",
      "{% for x in true[1:] %}a{% else %}b{% endfor %}", "{% if not true[1:] %}a{% endif %}")

group("macros",
      "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=4, a=5) }}",
      "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}",
      "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}",
      "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}",
      "{% macro m(a=n) %}{{ a }}{% endmacro %}{{ m() }}",
      "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}",
      "{% macro m(a) %}{{ a }}{{ varargs | join(',') }}{% endmacro %}{{ m(1, 2, 3) }}",
      "{% macro m() %}{{ kwargs.x }}{% endmacro %}{{ m(x=3) }}",
      "{% macro m() %}x{% endmacro %}{{ m(1) }}",
      "{% macro m() %}x{% endmacro %}{{ m(a=1) }}",
      "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
      "{% macro outer() %}<{{ caller() }}>{% endmacro %}{% call outer() %}body {{ n }}{% endcall %}",
      "{% macro outer() %}{{ caller('x', 1) }}{% endmacro %}{% call(a, b) outer() %}{{ a }}{{ b }}{% endcall %}",
      "{% macro outer() %}{{ caller(1) }}{% endmacro %}{% call(a, b=5) outer() %}{{ a }}{{ b }}{% endcall %}",
      "{% macro outer() %}{% if caller is defined %}{{ caller() }}{% else %}none{% endif %}{% endmacro %}{{ outer() }}",
      "{% macro outer(caller=none) %}{{ caller is none }}{% endmacro %}{{ outer() }}",
      "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}",
      "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
      "{% macro m() %}abc{% endmacro %}{{ m() | upper }}{{ m() | length }}{{ m() is string }}",
      "{% macro m() %}  {{ n }}\n{% endmacro %}[{{ m() | trim }}]",
      "{% macro m() -%}\n  x\n{%- endmacro %}[{{ m() }}]",
      "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(x=[1, 2]) }}",
      "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}{{ m(5, *[6]) }}",
      "{% macro m() %}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m.catch_varargs }}{{ m.caller }}",
      "{% macro m() %}{% endmacro %}{{ m }}",
      "{% macro m() %}{{ m2() }}{% endmacro %}{% macro m2() %}two{% endmacro %}{{ m() }}",
      "{% macro m(a, b=1, c=2) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(0, c=9) }}",
      "{% macro m(items) %}{% for i in items %}{{ i }}{% endfor %}{% endmacro %}{{ m(xs) }}",
      "{% for x in xs %}{{ loop.index }}{% macro m(v) %}({{ v }}){% endmacro %}{{ m(x) }}{% endfor %}",
      "{{ m() }}{% macro m() %}x{% endmacro %}",
      "{% macro m(caller) %}{{ caller() }}{% endmacro %}{% call m() %}z{% endcall %}",
      "{% macro a() %}{% macro b() %}inner{% endmacro %}{{ b() }}{% endmacro %}{{ a() }}{{ b is defined }}",
      "{% macro m(x) %}{{ x }}{% endmacro %}{{ xs | map('string') | map('upper') | list }}{{ m('<') ~ '>' }}")

group("globals",
      "{{ raise_exception('boom') }}",
      "{% if false %}{{ raise_exception('boom') }}{% endif %}ok",
      "{{ range(1000000) }}",
      "{{ range(100000) | length }}",
      "{{ range(1, 2, 0) }}",
      "{{ range('a') }}",
      "{{ range() }}",
      "{{ namespace(_a=1) }}",
      "{% set ns = namespace() %}{% set ns._a = 1 %}",
      "{{ strftime_now('fixed %% text') }}",
      "{{ strftime_now('') }}|",
      "{{ strftime_now('%Y') | length }}{{ strftime_now('%d %b') | length }}",
      "{{ dict(1) }}",
      "{{ cycler() }}")

group("precedence",
      "{{ -1 | abs }}", "{{ - 1 | abs }}", "{{ 1 - 1 | abs }}", "{{ 'a' ~ 'b' | upper }}",
      "{{ ('a' ~ 'b') | upper }}", "{{ 1 + 2 | string }}", "{{ 2 * 3 | float }}",
      "{{ not true and false }}", "{{ not (true and false) }}", "{{ true or false and false }}",
      "{{ 1 if true else 2 + 3 }}", "{{ (1 if true else 2) + 3 }}", "{{ [1, 2][0] + 1 }}",
      "{{ 'x' if n is defined else 'y' }}", "{{ n == 7 and s == 'Hello World' }}",
      "{{ xs | length > 2 }}", "{{ xs | length - 1 }}", "{{ 'a' in 'abc' and 'd' not in 'abc' }}",
      "{{ 'a' + 'b' in 'xab' }}", "{{ 1 in [1] == true }}", "{{ xs | first + xs | last }}",
      "{{ 'a,b' | replace(',', ';') | upper }}", "{{ d.a.c | length }}",
      "{{ s.split(' ')[0].lower()[1:3] | upper }}", "{{ s.split(' ') | map('lower') | join('_') }}",
      "{{ n is odd | string }}", "{{ 3 ~ 4 * 2 }}", "{{ 'n' ~ n + 1 }}",
      "{{ ''.join(['a']) | upper ~ 'b' }}", "{{ {'a': 1}['a'] }}", "{{ {'a': 1}.a }}", "{{ [1, 2] | first.real }}",
      "{{ (xs | sort)[0] }}", "{{ xs | sort | first }}", "{{ 'abc'[1] }}", "{{ 'abc' | upper | list | join('-') }}",
      "{{ n // 2 * 2 }}", "{{ n / 2 // 1 }}", "{{ -n ** 2 }}", "{{ 2 ** -1 }}", "{{ 1 < 2 and 2 < 3 }}",
      "{{ 'yes' if 'x' is string and 1 is number else 'no' }}", "{{ n if n is number else 'no' }}",
      "{{ missing.x if missing is defined else 'safe' }}", "{{ (missing | default({})).x is defined }}",
      "{{ 'a' if false else 'b' if false else 'c' }}", "{{ 1 if 1 if 0 else 0 else 2 }}")

group("errors",
      "{{ missing.x }}", "{{ missing['x'] }}", "{{ missing() }}", "{{ missing + 1 }}", "{{ 'a' + missing }}",
      "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ 'a' + none }}", "{{ [1] + 'a' }}", "{{ [1] + (2,) }}", "{{ {} + {} }}",
      "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 1 % 0 }}", "{{ 1.0 / 0 }}", "{{ 0 ** -1 }}",
      "{{ none + 1 }}", "{{ -'a' }}", "{{ +none }}", "{{ 'a' * 'b' }}", "{{ 'a' - 'b' }}",
      "{{ 1 < 'a' }}", "{{ none < 1 }}", "{{ missing < 1 }}", "{{ {} < {} }}", "{{ [1] < (1,) }}", "{{ 1 in 5 }}",
      "{{ 1 in 'a' }}", "{{ none in 'a' }}", "{{ n() }}", "{{ s() }}", "{{ d.nope() }}", "{{ none.foo.bar }}",
      "{{ xs.append(4) }}", "{{ xs.pop() }}", "{{ d.update({}) }}", "{{ d.pop('b') }}", "{{ xs.sort() }}",
      "{{ d.setdefault('q', 1) }}", "{{ d.__class__.__mro__ }}", "{{ ''.__class__() }}",
      "{{ n | length }}", "{{ none | length }}", "{{ n | first }}", "{{ n | list }}", "{{ n | join }}",
      "{{ xs | map('nope') | list }}", "{{ xs | select('nope') | list }}", "{{ xs | map | list }}",
      "{{ xs | selectattr | list }}", "{{ 5 | map('upper') | list }}", "{{ 5 | items | list }}",
      "{{ (xs | map('upper')) | length }}", "{{ xs | map('upper') | tojson }}", "{{ missing | tojson }}",
      "{{ d.keys() | tojson }}", "{{ namespace() | tojson }}", "{{ {(1, 2): 3} | tojson }}",
      "{{ {1: 1, 'a': 2} | tojson(sort_keys=true) }}", "{{ [1, 'a'] | sort }}", "{{ [1, none] | max }}",
      "{{ 'abc' | sum }}", "{{ 'abc'.index('z') }}", "{{ 'abc'.split('') }}", "{{ 'abc'.join([1]) }}",
      "{{ 'abc'.replace('a') }}", "{{ 'abc'.center() }}", "{{ 'abc'.upper(1) }}", "{{ 'a'.startswith(1) }}",
      "{{ 'abc'.replace(old='a', new='b') }}", "{{ d.get() }}", "{{ {[1]: 2} }}", "{{ {{}: 2} }}",
      "{{ '%d' % 'a' }}", "{{ '%s %s' % 'a' }}", "{{ '%s' % (1, 2) }}", "{{ '%z' % 1 }}", "{{ '%(a)s' % {} }}",
      "{{ '%' % 1 }}", "{{ '{}'.format() }}", "{{ '{a}'.format() }}", "{{ '{:d}'.format('a') }}", "{{ '{'.format(1) }}",
      "{{ '}'.format(1) }}", "{{ '{:z}'.format(1) }}", "{{ '{0} {}'.format(1, 2) }}", "{{ '{:.2d}'.format(1) }}",
      "{{ xs[::0] }}", "{{ xs['a':] }}", "{{ s | round }}", "{{ 1.5 | round(1, 'x') }}", "{{ missing | int }}",
      "{{ missing | float }}", "{{ none | abs }}", "{{ xs | batch }}", "{{ xs | upper(1) }}", "{{ s | replace('a') }}",
      "{% set a, b = 1 %}", "{% set a, b = [1] %}", "{% set a, b = [1, 2, 3] %}", "{% for a, b in xs %}{% endfor %}",
      "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}", "{% for x in xs %}{{ loop(x) }}{% endfor %}",
      "{% for x in xs if loop.index > 1 %}{{ x }}{% endfor %}",
      "{% set d.b = 1 %}", "{% set missing.x = 1 %}", "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}",
      "{% if %}{% endif %}", "{% if true %}", "{% endif %}", "{% for x in xs %}", "{% for in xs %}{% endfor %}",
      "{% for x of xs %}{% endfor %}", "{% else %}", "{% nope %}", "{% set %}", "{% set 1 = 2 %}", "{% set x.y.z = 2 %}",
      "{% set true = 2 %}", "{% set x[0] = 2 %}", "{{ }}", "{{", "{{ 1", "{{ 1 }", "{%", "{% if true", "{#", "{# x",
      "{% raw %}", "{{ 'abc }}", "{{ (1 }}", "{{ [1 }}", "{{ {1 }}", "{{ 1) }}", "{{ (1] }}", "{{ 1 2 }}", "{{ 1 + }}",
      "{{ * 1 }}", "{{ a b }}", "{{ x | }}", "{{ x | nope }}", "{{ x is nope }}", "{{ x is }}", "{{ x. }}", "{{ x.1.5 }}",
      "{{ x[ }}", "{{ {'a'} }}", "{{ {'a': } }}", "{{ f(a=1, 2) }}", "{{ f(**a, *b) }}", "{{ 1 is number is string }}",
      "{% if true %}{{ 1 | nope }}{% endif %}", "{% if false %}{{ 1 | nope }}{% endif %}ok",
      "{% if false %}{{ 1 is nope }}{% endif %}ok", "{{ (1 | nope) if false else 'ok' }}",
      "{% for x in [] %}{{ 1 | nope }}{% endfor %}", "{% if false %}{% for x in [] %}{{ 1 | nope }}{% endfor %}{% endif %}",
      "{% macro %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(1) %}{% endmacro %}", "{% macro m() %}",
      "{% call 5 %}{% endcall %}", "{% call missing() %}{% endcall %}", "{% filter nope %}{% endfilter %}",
      "{% block a %}{% endblock %}{% block a %}{% endblock %}", "{% break %}", "{% continue %}",
      "{% for x in xs %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
      "{% if true %}{% endfor %}", "{% for x in xs %}{% endif %}", "{{ 007 }}", "{{ 1__0 }}", "{{ $ }}", "{{ a ? b : c }}", "{{ a && b }}",
      "{{ '\\u12' }}", "{{ '\\x1' }}", "{{ 1 if }}", "{{ not }}x", "{% with a %}{% endwith %}",
      "{{ [1, 2, , 3] }}", "{{ (,) }}", "{{ f(,) }}", "{% set x = %}", "{% generation %}", "{{ 'a'.nope() }}", "{{ xs[0].nope.nope }}",
      "{{ {'a': 1}.a.b.c }}", "{{ range(3).nope() }}", "{{ joiner(1, 2) }}", "{{ d['a']['zz']['y'] }}", "{{ namespace(1) }}")

group("real",
      "{% for m in users %}{{ '<|' ~ m.name ~ '|>' }}\n{%- if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}",
      "{%- set system = users[0]['name'] if users[0].active else '' -%}\n{{- system -}}",
      "{% set content = 'a</think>b' %}{{ content.split('</think>')[-1].lstrip('\n') }}|{{ content.split('</think>')[0].rstrip('\n').split('<think>')[-1] }}",
      "{% for idx in range(users|length-1, -1, -1) %}{% if users[idx].active %}{{ idx }}{% endif %}{% endfor %}",
      "{{ users[:1+1] | map(attribute='name') | list }}{{ users[2:] | length }}",
      "{{- '\\n<x>' ~ 'k' ~ '>' ~ (d.a | tojson | safe) ~ '</' ~ 'k' ~ '>' }}",
      "{{ '\"' + (d.a | tojson | safe) }}",
      "{% for k, v in d.a.items() %}{{ k }}{{ v | tojson(ensure_ascii=False) if v is not string else v }}{% endfor %}",
      "{%- for message in users -%}\n  {%- if message['age'] == 30 -%}\n    A{{ message.name }}\n  {%- else -%}\n    B\n  {%- endif -%}\n{%- endfor -%}",
      "{% set ns = namespace(first=true, text='') %}{% for u in users %}{% if ns.first %}{% set ns.first = false %}{% else %}{% set ns.text = ns.text + ', ' %}{% endif %}{% set ns.text = ns.text + u.name %}{% endfor %}{{ ns.text }}",
      "{{ (users | selectattr('age', 'equalto', 30) | list)[-1].name }}",
      "{% if users is string %}s{% elif users is iterable and users is not mapping %}{% for i in users %}{{ i.name if i is mapping }}{% endfor %}{% endif %}",
      "{{ (users | map(attribute='tags') | sum(start=[])) | unique | join('') }}",
      "{{ '%s: %s' % (users[0].name, users[0].age) }}",
      "{{ users[0].tags.0 if users[0].tags else 'none' }}{{ users[1].tags.0 if users[1].tags else 'none' }}",
      "{% macro r(x, depth=0) %}{{ '  ' * depth }}{{ x.v }}\n{% for k in x.kids or [] %}{{ r(k, depth + 1) }}{% endfor %}{% endmacro %}{% for t in tree %}{{ r(t) }}{% endfor %}",
      "{{ none | string ~ true | string ~ 1.0 | string }}", "{{ {'a': none, 'b': true, 'c': 'it\\'s', 'd': 1.0} }}",
      "{{ [{'type': 'text', 'text': 'hi'}] }}", "{{ [uni, '\\n'] }}")


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def strftime_now(format):
    from datetime import datetime
    return datetime.now().strftime(format)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class Dict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


def check_name(name):
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(name)


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            check_name(name)
        jinja2.utils.Namespace.__init__(args[0], attributes)

    def __setitem__(self, name, value):
        check_name(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals.update(raise_exception=raise_exception, strftime_now=strftime_now, dict=Dict(),
                       namespace=Namespace)
    return env


def render(env, template):
    try:
        return env.from_string(template).render(**json.loads(json.dumps(INPUTS)))
    except Exception as error:  # whatever it is, tern must fail too
        if os.environ.get("SHOW_ERRORS"):
            print(repr(template), "->", type(error).__name__, error)
        return None


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    read_expressions(os.path.join(here, "jinja_expressions.txt"))
    env = environment()
    cases = [[name, template, render(env, template)]
             for name, templates in GROUPS.items() for template in templates]
    with open(os.path.join(here, "jinja_cases.json"), "w", encoding="utf-8") as out:
        out.write('{"inputs": ' + json.dumps(INPUTS) + ',\n "cases": [\n')
        out.write(",\n".join("  " + json.dumps(case) for case in cases))
        out.write("\n]}\n")
    print(len(cases), "cases,", sum(case[2] is None for case in cases), "of them errors")


if __name__ == "__main__":
    main()
