#!/usr/bin/env python3
"""Writes jinja_cases.json: small templates and what jinja2 makes of them.

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


def each(name, text):
    """One expression a line, each printed."""
    group(name, *["{{ " + line.strip() + " }}" for line in text.strip().splitlines() if line.strip()])


each("literals", r"""
1
0
1_000
0x1F
0b101
0o17
0xff_ff
1.5
1e3
1.5e-7
1e16
123456789012345680.0
1E5
0.1 + 0.2
1_0.5
100000.0
1e-5
0.0001
-0.0
1e400
'a' "b" 'c'
"it's"
'say "hi"'
true ~ True ~ false ~ False ~ none ~ None
[1, 'a', none, true, 1.0]
[1, 2,]
(1, 2)
(1,)
()
[]
{}
{'a': 1, "b": [1, {'c': 2}]}
{'a': 1, 'a': 2}
{1: 'x', 1.0: 'y', true: 'z'}
{(1, 2): 'tuple key'}
{none: 1, 2.5: 2}
[[]]
1, 2
""")

each("strings", r"""
'\n\t\\\'\"'
"\x41\u00e9\U0001F600\101"
'\d\q'
'a\
b'
'\é'
'\€\😀'
['\n', '\x00', '\x7f', '\u200b', 'é', '😀', '\\']
['"', "'", "'\""]
'\xe9' == 'é'
"\a\b\f\v" | tojson
s[0] ~ s[-1]
s[20]
s[1:4]
s[:-3]
s[::-1]
s[::2]
s[-3:]
s[10:2]
s[10:2:-2]
uni[6]
uni[6:8]
uni | length
uni[::-1]
s * 2
2 * 'ab'
'ab' * 0
'ab' * -1
'a' + 'b'
'a' 'b' ~ 1
'%s-%d' % ('a', 3)
'%5d|%-5d|%05d|%+d|% d' % (1, 2, 3, 4, 5)
'%.2f %8.3f %e %g %G' % (3.14159, 2.5, 12345.678, 0.00001, 1e20)
'%x %X %o %#x %c %c' % (255, 255, 8, 255, 65, 'z')
'%s %r' % ('q', 'q')
'%s' % 5
'%s' % [1, 2]
'%(a)s and %(b)03d' % {'a': 'x', 'b': 7}
'100%%' % ()
'%s' % missing
'%*d' % (5, 3)
'%.3s|%5s|%-5s|' % ('abcdef', 'ab', 'ab')
'%d' % 3.99
'%d' % true
""")

each("arithmetic", r"""
1 + 2 * 3
(1 + 2) * 3
7 / 2
6 / 3
7 // 2
-7 // 2
7 // -2
-7 % 3
7 % -3
7.5 // 2
-7.5 % 2
7 % 2.5
0.0 % -3
2 ** 10
2 ** -1
2 ** 0.5
2 ** 3 ** 2
-2 ** 2
10 - 3 - 2
2 * 3 % 4
-n
+n
- - n
-f
+true
true + true
true * 3
f + n
f - n
f * n
f / n
f // n
f % n
f ** 2
1 + 1.0
10 // 3.0
[1] + [2, 3]
(1,) + (2,)
[0] * 3
3 * [1, 2]
n ~ f
1 ~ 2 + 3
1 + 2 ~ 3
none ~ 'x'
[1] ~ {'a': 1}
missing ~ 'x'
9223372036854775807
-9223372036854775807 - 1
4611686018427387904 + 4611686018427387903
5 - -3
1e308 * 10
-1e308 * 10
3 - 2.0
big + 0
big * 1.0
7 // 7.0
1 / 3
""")

each("comparison", r"""
1 == 1.0
1 == true
0 == false
'a' == "a"
'1' == 1
none == none
none == false
missing == missing
missing == none
[1, 2] == [1, 2]
[1, 2] == (1, 2)
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
{'a': 1} == {'a': 2}
1 != 2
'a' < 'b'
'B' < 'a'
'ab' < 'abc'
'é' > 'z'
[1, 2] < [1, 3]
[1] < [1, 0]
(1, 2) <= (1, 2)
1 < 2 < 3
1 < 3 < 2
3 > 2 >= 2 == 2
1 < 2 == 2
1 == 1 in [1]
not 1 == 2
not not 1
1 < 2.5
big == big * 1.0
big < 9007199254740992.0
2 in [1, 2]
2 not in [1, 2]
'lo' in 'hello'
'' in 'hello'
'x' not in 'hello'
'b' in d
'z' in d
1 in (1, 2)
1.0 in [1]
none in [none]
3 in range(5)
not 3 in [1]
'a' in missing
missing in [1]
n in xs or n == 7
1 and 2
0 and 2
0 or 'x'
'' or none
1 or missing.foo
0 and missing.foo
not missing
not ''
not 'a' or true
true and not false
1 if true else 2
1 if false else 2
1 if false
'[' ~ (1 if false) ~ ']'
1 if 0 else 2 if 0 else 3
'a' if t and n > 3 else 'b'
(1 if false) is undefined
nan is defined
""")

each("attributes", r"""
d.b
d['b']
d.a.c[0]
d.a.c[2].k
d.a['c'][-1]['k']
d.missing
d['missing']
'[' ~ d.missing ~ ']'
d['items']
d.get('b')
d.get('zz')
d.get('zz', 5)
d.get('C', 5)
xs[0]
xs[-1]
xs[5]
xs.0
xs[1:]
xs[:1]
xs[::-1]
xs[::2]
xs[-2:]
xs[5:]
xs[2:0:-1]
xs[:]
xs[none:2]
xs[true]
(1, 2, 3)[1:]
range(10)[2:5]
range(10)[-1]
range(3)
range(1, 10, 3) | list
range(5, 0, -2) | list
range(0) | list
users[0].name
users[-1]['nick']
users.0.tags.0
missing
'x' ~ missing
missing is defined
d.a.missing is defined
d.C is none
d.values() | list
d.keys()
d.a.items()
d.a.values() | list
d.keys() | list | length
d.a.items() | list
'b' in d.keys()
{'x': 1}.items() | length
xs.index(1)
xs.count(3)
(1, 2, 2).count(2)
(1, 2, 2).index(2)
xs.copy()
d.a.copy()
d[['a']]
xs['0']
n.foo
none.foo
d._private
d['__class__']
xs.append
d.update
'[' ~ xs.append ~ ']'
namespace(a=1).a
namespace(a=1)['a']
namespace({'a': 1}, b=2).b
namespace(a=1).zz
namespace(a=1)
dict(a=1, b='x')
dict({'a': 1}, b=2)
dict([('a', 1), ['b', 2]])
dict()
dict.fromkeys(['a', 'b'], 0)
range(3).stop
""")

each("string_methods", r"""
s.upper()
s.lower()
'hELLO wORLD'.capitalize()
"they're bill's".title()
'Hello'.swapcase()
'straße ﬁ ŉ'.upper()
'ΑΣ ΣΑΣ. Σ'.lower()
'İ'.lower() | length
'ǆ'.capitalize()
'ﬁn'.capitalize()
'  x '.strip()
'xxaxx'.strip('x')
'xyaxy'.lstrip('yx')
'xyaxy'.rstrip('xy')
'\u3000 a\u00a0'.strip()
' a '.lstrip() ~ '|'
' a '.rstrip() ~ '|'
'a,b,c'.split(',')
'a,b,c'.split(',', 1)
'a,b,c'.rsplit(',', 1)
'  a  b c '.split()
'  a  b c '.split(none, 1)
'  a  b c '.rsplit(none, 1)
'a b c'.split(maxsplit=1)
'a--b--c'.split('--')
'a,b'.split(sep=',')
''.split()
''.split(',')
'abc'.split('')
'a\nb\r\nc\x0bd\u2028e'.splitlines()
'a\nb\n'.splitlines(true)
'a\n\nb'.splitlines()
'abcabc'.replace('b', 'X')
'abcabc'.replace('b', 'X', 1)
'abc'.replace('', '-')
'abc'.replace('', '-', 2)
''.replace('', '-')
'abc'.replace('c', '')
'abc'.startswith('ab')
'abc'.startswith(('x', 'a'))
'abc'.startswith('b', 1)
'abc'.endswith('bc')
'abc'.endswith(('x', 'c'))
'abc'.endswith('b', 0, 2)
'abc'.startswith('')
'hello'.find('l')
'hello'.rfind('l')
'hello'.find('z')
'hello'.find('l', 3)
'hello'.find('', 9)
'naïve'.find('v')
'hello'.index('l')
'hello'.rindex('l')
'hello'.count('l')
'hello'.count('')
'aaaa'.count('aa')
'a-b-c'.partition('-')
'a-b-c'.rpartition('-')
'abc'.partition('-')
'abc'.rpartition('-')
','.join(['a', 'b'])
''.join(['a'])
', '.join(d.a.keys())
'-'.join('abc')
'ab'.center(7, '*') ~ '|'
'abc'.center(6) ~ '|'
'ab'.center(5) ~ '|'
'ab'.ljust(5, '.') ~ '|'
'ab'.rjust(5) ~ '|'
'-42'.zfill(6)
'abc'.zfill(2)
'+1'.zfill(4)
'abc'.isalpha() ~ 'a1'.isalpha() ~ ''.isalpha()
'12'.isdigit() ~ '1²'.isdigit() ~ '½'.isdigit()
'12'.isnumeric() ~ '½'.isnumeric()
'12'.isdecimal() ~ '²'.isdecimal()
'a1'.isalnum() ~ 'a 1'.isalnum()
' \n'.isspace() ~ ''.isspace()
'ABC'.isupper() ~ 'AbC'.isupper() ~ '1'.isupper()
'abc'.islower() ~ 'a1'.islower()
'Hello World'.istitle() ~ 'Hello world'.istitle()
'a_1'.isidentifier() ~ '1a'.isidentifier()
'abc'.isascii() ~ 'é'.isascii()
'ab'.isprintable() ~ 'a\n'.isprintable()
'prefix-x'.removeprefix('prefix-')
'x.txt'.removesuffix('.txt')
'{} {}'.format('a', 1)
'{0} {1} {0}'.format('a', 'b')
'{a} {b[k]} {c.name}'.format(a=1, b={'k': 2}, c={'name': 3})
'{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd')
'{:05d} {:+d} {:x} {:#b} {:,}'.format(42, 42, 255, 5, 1234567)
'{:.2f} {:8.3f} {:e} {:g} {:%}'.format(3.14159, 2.5, 12345.678, 0.00001, 0.25)
'{!r} {!s}'.format('a', 'b')
'{{}} {}'.format(1)
'{:{}}|'.format('a', 5)
'{:_}'.format(1234567)
'{:.3}'.format('abcdef')
'{}'.format(none)
'{} {} {}'.format(true, 1.0, [1])
'{:d}'.format(true)
'{:>8}'.format(true)
'{:10}|'.format(5)
'{:,.2f}'.format(1234567.891)
'{:08.3f}'.format(-3.14159)
'{:.3g}'.format(1234.5)
'{:.1}'.format(0.25)
'{x}'.format_map({'x': 5})
'{0[0]}{0[1]}'.format([1, 2])
'a' .upper()
""")

each("filters_text", r"""
s | upper
s | lower
'hello WORLD' | capitalize
'hello wORLD-foo (bar) baz_qux' | title
'  x ' | trim ~ '|'
'xxaxx' | trim('x')
5 | trim
s | replace('o', '0')
s | replace('o', '0', 1)
123 | replace(2, 'x')
s | replace('l', '', count=2)
s | string
5 | string
none | string
[1, 'a'] | string
html | e
html | escape
html | safe
html | safe | escape
html | forceescape
html | safe | forceescape
'<' + ('>' | safe)
('<' | safe) + '>'
'<' ~ ('>' | safe)
('<b>' | safe) ~ '&'
(('<b>' | safe) + '&') | length
['<b>' | safe]
('<%s>' | safe) % '&'
('<{}>' | safe).format('&')
('<b>' | safe).upper()
('<b>' | safe).replace('b', '<')
('<b>,<i>' | safe).split(',')
('<b>' | safe) * 2
('<b>' | safe)[0:2]
(', ' | safe).join(['<', '>' | safe])
['<', '>' | safe] | join(',')
('<b>' | safe) is string
('<b>' | safe) is escaped
'<b>' is escaped
('<b>' | safe) == '<b>'
('<b>' | safe) | tojson
('<b>' | safe) | upper + '&'
('<b>' | safe) | trim + '&'
('<b>' | safe) | replace('b', 'i') + '&'
multi | indent
multi | indent(2)
multi | indent(2, true)
multi | indent(2, first=true, blank=true)
multi | indent('> ')
'' | indent
'a' | indent(first=true)
s | center(21) ~ '|'
'%s-%s' | format('a', 1)
'%(x)s' | format(x=5)
s | truncate(8)
s | truncate(7, true)
s | truncate(8, leeway=0)
s | truncate(8, true, '!', 0)
'short' | truncate(3)
'a b  c-d e_f' | wordcount
uni | wordcount
'a b&c/d?é' | urlencode
{'a b': 'c/d', 'x': 1} | urlencode
[('a', 'b'), ('c', 1)] | urlencode
1000 | filesizeformat
1 | filesizeformat
999 | filesizeformat
1500000 | filesizeformat
1500000 | filesizeformat(true)
html | length
uni | upper
'éÉ' | lower
'a' | upper | lower
-1 | abs
-1.5 | abs
(-5) | abs
'x' | attr('upper') is callable
d | attr('b') is undefined
""")

each("filters_sequence", r"""
xs | length
d | length
s | count
'' | length
range(4) | length
missing | length
xs | first
xs | last
s | first
s | last
[] | first
[] | last
d | first
d | last
missing | first
xs | sort
xs | sort(reverse=true)
words | sort
words | sort(case_sensitive=true)
words | sort(true)
users | sort(attribute='age') | map(attribute='name') | list
users | sort(attribute='age,name') | map(attribute='name') | list
users | sort(attribute='name', reverse=true) | map(attribute='name') | list
[[2, 1], [1, 5], [1, 2]] | sort
[2.5, 1, true] | sort
d.a | dictsort
{'b': 1, 'A': 2, 'c': 0} | dictsort
{'b': 1, 'A': 2, 'c': 0} | dictsort(true)
{'b': 1, 'A': 2, 'c': 0} | dictsort(false, 'value')
{'b': 1, 'A': 2} | dictsort(reverse=true)
xs | join
xs | join(', ')
words | join('-')
users | join(', ', attribute='name')
users | join('|', 'age')
'abc' | join('.')
d.a | join
[1, none, 'x', 2.5] | join(' ')
missing | join(',')
xs | list
'abc' | list
d | list
range(3) | list
missing | list
(1, 2) | list
xs | reverse | list
'abc' | reverse
d | reverse | list
range(3) | reverse | list
xs | min
xs | max
words | min
words | max
words | min(case_sensitive=true)
users | max(attribute='age')
[] | max
missing | min
xs | sum
users | sum(attribute='age')
[0.5, 1] | sum
[] | sum
xs | sum(start=10)
[[1], [2]] | sum(start=[])
words | unique | list
words | unique(true) | list
users | unique(attribute='age') | map(attribute='name') | list
users | map(attribute='name') | list
users | map(attribute='nick', default='-') | list
users | map(attribute='nick') | list
users | map(attribute='tags.0') | list
users | map(attribute='tags.0', default='none') | list
words | map('upper') | list
words | map('replace', 'a', 'X') | list
words | map('length') | list
xs | map('string') | join('+')
['1', '2'] | map('int') | sum
xs | select | list
[0, 1, '', none, 'a'] | select | list
[0, 1, '', none, 'a'] | reject | list
xs | select('odd') | list
xs | reject('odd') | list
xs | select('gt', 1) | list
xs | select('>', 1) | list
xs | select('in', [1, 2]) | list
words | select('equalto', 'apple') | list
users | selectattr('active') | map(attribute='name') | list
users | rejectattr('active') | map(attribute='name') | list
users | selectattr('age', 'equalto', 30) | map(attribute='name') | list
users | selectattr('nick', 'defined') | map(attribute='name') | list
users | selectattr('nick', 'undefined') | map(attribute='name') | list
users | selectattr('age', '>=', 30) | list | length
users | rejectattr('age', 'ge', 30) | map(attribute='name') | join
users | selectattr('tags.0') | map(attribute='name') | list
xs | batch(2) | list
xs | batch(2, 0) | list
range(7) | slice(3) | list
range(7) | slice(3, 'x') | list
users | groupby('age') | list
users | groupby('age') | map(attribute='grouper') | list
users | groupby('nick', default='none') | map('first') | list
users | groupby('name') | map('last') | map('length') | list
words | groupby(0) | map('first') | list
d.a | items | list
missing | items | list
d.a | items | first
xs | map('upper') is iterable
(xs | map('upper')) is sequence
(xs | select) is string
xs | default('x')
missing | default('x')
missing | default
empty | default('x')
empty | default('x', true)
nil | default('x')
nil | default('x', boolean=true)
missing | d('y')
d.zz | default([])
(missing | default('abc')) | upper
""")

each("filters_number", r"""
'42' | int
'42.7' | int
'x' | int
'x' | int(5)
'0x1f' | int(base=16)
'1f' | int(0, 16)
'101' | int(base=2)
'0b11' | int(base=0)
' 12 ' | int
'1_000' | int
'-5' | int
'+5' | int
2.9 | int
-2.9 | int
true | int
none | int
[] | int(7)
'1e3' | int
'' | int
'inf' | int
'1.5' | float
'x' | float
'x' | float(2.0)
'1e5' | float
3 | float
none | float
' 2.5 ' | float
'nan' | float
'-inf' | float
'1_0.5' | float
'0x10' | float
42.55 | round
42.55 | round(1)
42.45 | round(1)
2.5 | round
3.5 | round
-2.5 | round
42 | round
2.675 | round(2)
1234 | round(-2)
1250 | round(-2)
1350 | round(-2)
1234.5 | round(-2)
42.1 | round(0, 'ceil')
42.9 | round(0, 'floor')
42.123 | round(2, 'ceil')
42 | round(0, 'ceil')
42.0 | round | int
""")

each("tojson", r"""
d | tojson
d.a | tojson
xs | tojson
[] | tojson
{} | tojson
'a"b\\c\n\t\x01\x7f</script>' | tojson
html | tojson
uni | tojson
uni | tojson(ensure_ascii=true)
uni | tojson(true)
'\u2028\u00ff' | tojson(ensure_ascii=True)
1 | tojson
1.0 | tojson
1e100 | tojson
1.5e-10 | tojson
true | tojson
none | tojson
(1, 2) | tojson
{1: 2, none: 3, true: 4, 2.5: 5} | tojson
d.a | tojson(indent=2)
[1, [2, {}], []] | tojson(indent=4)
{'a': []} | tojson(indent=1)
xs | tojson(indent=0)
xs | tojson(indent='--')
xs | tojson(indent=none)
d.a | tojson(separators=(',', ':'))
d.a | tojson(separators=[', ', ' = '], indent=1)
{'b': 1, 'a': 2} | tojson(sort_keys=true)
{'b': {'z': 1, 'y': 2}, 'a': 2} | tojson(indent=2, sort_keys=True)
users | tojson
[1e400, -1e400] | tojson
users | map(attribute='name') | list | tojson
big | tojson
""")

each("tests", r"""
n is defined
missing is defined
missing is undefined
n is not defined
nil is none
missing is none
n is number
f is number
t is number
s is number
n is integer
t is integer
f is integer
f is float
n is float
t is boolean
n is boolean
t is true
no is false
1 is true
s is string
n is string
d is mapping
xs is mapping
xs is sequence
s is sequence
d is sequence
n is sequence
missing is sequence
range(3) is sequence
d.keys() is sequence
xs is iterable
s is iterable
n is iterable
missing is iterable
d.a.items() is iterable
namespace() is iterable
n is odd
n is even
8 is even
-3 is odd
n is divisibleby 7
n is divisibleby(2)
n is eq 7
n is equalto 8
n is ne 8
n is lt 8
n is lessthan 3
n is le 7
n is gt 3
n is greaterthan 9
n is ge 7
n is == 7
3 is in [1, 2]
3 is in xs
3 is not in xs
'a' is in 'abc'
n is sameas n
1 is sameas true
none is sameas none
'abc' is lower
'ABC' is upper
'Abc' is upper
'123' is lower
s.upper is callable
n is callable
namespace is callable
'upper' is filter
'nope' is filter
'odd' is test
'nope' is test
n is defined and n is number
not n is string
n is string or f is float
(n is number) == true
n is not string
xs[0] is number
d.b is defined and d.b == 1
d.zz is defined
1.0 is integer
d is mapping and d is not string
[] is sequence and [] is not mapping
""")

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

group("statements",
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
    env = environment()
    cases = [[name, template, render(env, template)]
             for name, templates in GROUPS.items() for template in templates]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jinja_cases.json")
    with open(path, "w", encoding="utf-8") as out:
        out.write('{"inputs": ' + json.dumps(INPUTS) + ',\n "cases": [\n')
        out.write(",\n".join("  " + json.dumps(case) for case in cases))
        out.write("\n]}\n")
    print(len(cases), "cases,", sum(case[2] is None for case in cases), "of them errors")


if __name__ == "__main__":
    main()
