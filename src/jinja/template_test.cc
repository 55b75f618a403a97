// The engine against jinja2 (tests/data/templates/make_jinja_cases.py), and its bounds.
#include "jinja/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <map>
#include <optional>
#include <set>

#include "base/json.h"
#include "jinja/json_value.h"

namespace tern::jinja {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Case {
  std::string source;
  std::optional<std::string> output;  // absent: jinja2 fails
};

struct CaseFile {
  Value inputs;
  std::map<std::string, std::vector<Case>> groups;
};

const CaseFile& Cases() {
  static const CaseFile* const file = [] {
    auto* cases = new CaseFile;
    const auto json =
        ParseJsonFile(std::string(TERN_SOURCE_DIR) + "/tests/data/templates/jinja_cases.json");
    if (!json.ok()) return cases;
    cases->inputs = FromJson((*json)["inputs"]).value();
    for (const Json& c : (*json)["cases"]) {
      Case parsed{c[1].get<std::string>(), std::nullopt};
      if (!c[2].is_null()) parsed.output = c[2].get<std::string>();
      cases->groups[c[0].get<std::string>()].push_back(std::move(parsed));
    }
    return cases;
  }();
  return *file;
}

Result<std::string> RenderWith(std::string_view source, const Dict& inputs,
                               const Limits& limits = {}) {
  TERN_ASSIGN_OR_RETURN(const auto compiled, Template::Compile(source));
  return compiled->Render(inputs, limits);
}

// The text, or "error: message".
std::string Render(std::string_view source, const Limits& limits = {}) {
  const auto text = RenderWith(source, Dict(), limits);
  return text.ok() ? *text : "error: " + text.status().message();
}

class Jinja2Test : public ::testing::TestWithParam<const char*> {};

TEST_P(Jinja2Test, RendersTheSame) {
  const auto group = Cases().groups.find(GetParam());
  ASSERT_NE(group, Cases().groups.end()) << "no such group in jinja_cases.json";
  ASSERT_GE(group->second.size(), 10u);
  for (const Case& c : group->second) {
    const auto text = RenderWith(c.source, Cases().inputs.dict());
    if (c.output) {
      EXPECT_TRUE(text.ok()) << c.source << "\n" << text.status().ToString();
      EXPECT_EQ(text.ok() ? *text : "", *c.output) << c.source;
    } else {
      EXPECT_FALSE(text.ok()) << c.source << "\n" << *text;
      if (text.ok()) continue;
      EXPECT_EQ(text.status().code(), StatusCode::kInvalidArgument) << c.source;
      EXPECT_THAT(text.status().message(), StartsWith("line ")) << c.source;
    }
  }
}

constexpr const char* kGroups[] = {
    "arithmetic",       "attributes",   "comparison", "errors",     "filters_number",
    "filters_sequence", "filters_text", "globals",    "literals",   "macros",
    "precedence",       "real",         "scoping",    "statements", "string_methods",
    "strings",          "tests",        "tojson",     "whitespace"};

INSTANTIATE_TEST_SUITE_P(Groups, Jinja2Test, ::testing::ValuesIn(kGroups),
                         [](const auto& info) { return std::string(info.param); });

TEST(JinjaTest, EveryGroupOfTheCaseFileIsTested) {
  std::set<std::string> in_file;
  for (const auto& [name, cases] : Cases().groups) in_file.insert(name);
  EXPECT_EQ(in_file, std::set<std::string>(std::begin(kGroups), std::end(kGroups)));
}

// ---- what differs from jinja2 on purpose

TEST(JinjaTest, IntegersThatNeedMoreThan64BitsAreAnError) {
  for (const char* expression :
       {"9223372036854775807 + 1", "-9223372036854775807 - 2", "4611686018427387904 * 2", "2 ** 63",
        "9223372036854775808", "'9223372036854775808' | int", "1e19 | int",
        "-(-9223372036854775807 - 1)", "(-9223372036854775807 - 1) // -1"}) {
    EXPECT_THAT(Render("{{ " + std::string(expression) + " }}"),
                HasSubstr("integer does not fit in 64 bits"))
        << expression;
  }
  EXPECT_EQ(Render("{{ (-9223372036854775807 - 1) % -1 }}"), "0");
}

TEST(JinjaTest, FromJsonParses) {
  EXPECT_EQ(Render("{{ ('{\"a\": [1, null, 2.5]}' | from_json).a }}"), "[1, None, 2.5]");
  EXPECT_THAT(Render("{{ '{' | from_json }}"), StartsWith("error: line 1: malformed JSON"));
}

TEST(JinjaTest, StrftimeNowReadsTheClockInLocalTime) {
  setenv("TZ", "UTC", 1);
  tzset();
  ManualClock clock;
  clock.AdvanceUs(int64_t{1700000000} * 1'000'000);  // 2023-11-14 22:13:20 UTC
  const auto compiled = Template::Compile("{{ strftime_now('%d %b %Y %H:%M:%S.%f%z %j') }}");
  ASSERT_TRUE(compiled.ok());
  const auto text = (*compiled)->Render(Dict(), {}, clock);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  EXPECT_EQ(*text, "14 Nov 2023 22:13:20.000000 318");
}

TEST(JinjaTest, ErrorsNameTheLineWhereTheyHappen) {
  EXPECT_EQ(Render("\n{% if true %}\n{{ 1 +\n 'a' }}{% endif %}"),
            "error: line 3: unsupported operand type(s) for +: 'int' and 'str'");
  EXPECT_THAT(Render("a\n{{ 'x\ny' }}\n{{ nope | zip }}"), StartsWith("error: line 4: "));
  EXPECT_THAT(Render("{# a\n\n #}\n{{ '"), StartsWith("error: line 4: "));
  EXPECT_THAT(Render("{%- if true -%}\n\n\n{{ a.b.c }}{% endif %}"),
              StartsWith("error: line 4: 'a' is undefined"));
}

TEST(JinjaTest, RefusesTemplatesThatAreNotUtf8) {
  EXPECT_THAT(Render("a \xFF b"), HasSubstr("not valid UTF-8"));
  EXPECT_THAT(Render("{{ '\\ud800' }}"), HasSubstr("is not a character"));
}

// ---- bounds

TEST(JinjaBoundsTest, Steps) {
  EXPECT_THAT(Render("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}"
                     "{% endfor %}"),
              HasSubstr("steps"));
  EXPECT_THAT(Render("{% for a in range(1000) %}{{ a }}{% endfor %}", {.steps = 500}),
              HasSubstr("more than 500 steps"));
  // Scans count by their length.
  EXPECT_THAT(Render("{% set x = 'ab' * 10000000 %}{% for a in range(100000) %}"
                     "{% if 'c' in x %}{% endif %}{% endfor %}"),
              HasSubstr("steps"));
}

TEST(JinjaBoundsTest, Memory) {
  const Limits small = {.memory_bytes = 1 << 20};
  for (const char* source :
       {"{{ 'ab' * 100000000 }}", "{{ [0] * 100000000 }}", "{{ 'a'.center(1000000000) }}",
        "{{ 'a'.zfill(1000000000) }}", "{{ 'a' | indent(1000000000, true) }}",
        "{{ ('a' * 5000) | replace('', 'b' * 5000) }}", "{{ ('b' * 5000).join('a' * 5000) }}",
        "{{ range(5000) | join('b' * 5000) }}", "{{ '%2000000000d' % 1 }}",
        "{{ '{:2000000000}'.format(1) }}", "{{ '%.2000000000f' % 1.0 }}",
        "{{ [[1] * 1000] * 1000 | string }}", "{{ [1] | batch(1000000000, 0) | list }}",
        "{{ [[1] * 9000] | tojson(indent='x' * 9000) }}",
        "{% set ns = namespace(x='a' * 1000) %}{% for i in range(30) %}"
        "{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% endfor %}{{ ns.x | tojson }}",
        "{% set x %}{% for i in range(100000) %}{{ 'a' * 100 }}{% endfor %}{% endset %}"}) {
    EXPECT_THAT(Render(source, small), StartsWith("error: line 1: ")) << source;
  }
}

TEST(JinjaBoundsTest, ComparingSharedListsIsBounded) {
  // 2^60 comparisons if nothing counted them.
  EXPECT_THAT(Render("{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}"
                     "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
                     "{{ ns.x == ns.y }}"),
              HasSubstr("steps"));
}

TEST(JinjaBoundsTest, Output) {
  EXPECT_THAT(Render("{% for i in range(1000) %}aaaaaaaaaa{% endfor %}", {.output_bytes = 100}),
              HasSubstr("prints more than 100 bytes"));
}

TEST(JinjaBoundsTest, Recursion) {
  EXPECT_THAT(Render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), HasSubstr("recursion"));
  EXPECT_THAT(Render("{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}"),
              HasSubstr("recursion"));
  EXPECT_THAT(Render("{% macro m() %}{% call m() %}{% endcall %}{{ caller }}{% endmacro %}"
                     "{{ m() }}"),
              HasSubstr("recursion"));
  // As deep as jinja2's own tests of nested data go.
  EXPECT_EQ(Render("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% else %}end{% endif %}{% endmacro %}"
                   "{{ m(50) }}"),
            "end");
}

std::string Repeat(std::string_view text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

TEST(JinjaBoundsTest, DeepTemplates) {
  for (const auto& [open, close] :
       std::vector<std::pair<std::string, std::string>>{{"(", ")"},
                                                        {"[", "]"},
                                                        {"{1:", "}"},
                                                        {"-", ""},
                                                        {"not ", ""},
                                                        {"a[", "]"},
                                                        {"a(", ")"},
                                                        {"1 if 1 else ", ""},
                                                        {"", ".a"},
                                                        {"", "|list"},
                                                        {"", "[0]"},
                                                        {"", "+1"},
                                                        {"", "**1"},
                                                        {"", "()"},
                                                        {"", " or 1"}}) {
    const std::string source = "{{ " + Repeat(open, 20000) + "1" + Repeat(close, 20000) + " }}";
    EXPECT_THAT(Render(source), StartsWith("error: line 1: ")) << open << "1" << close;
  }
  for (const auto& [open, close] : std::vector<std::pair<std::string, std::string>>{
           {"{% if 1 %}", "{% endif %}"},
           {"{% for a in b %}", "{% endfor %}"},
           {"{% macro a() %}", "{% endmacro %}"},
           {"{% set a %}", "{% endset %}"},
           {"{% filter upper %}", "{% endfilter %}"}}) {
    EXPECT_THAT(Render(Repeat(open, 20000) + Repeat(close, 20000)), HasSubstr("nested deeper"))
        << open;
  }
  // Flat things may be long.
  EXPECT_EQ(Render("{{ [" + Repeat("1,", 5000) + "] | length }}"), "5000");
  EXPECT_EQ(Render("{{ 1" + Repeat(" ~ 1", 5000) + " }}"), std::string(5001, '1'));
  EXPECT_EQ(Render("{% if 0 %}" + Repeat("{% elif 0 %}", 5000) + "{% else %}x{% endif %}"), "x");
}

TEST(JinjaBoundsTest, DeepValues) {
  for (const char* step :
       {"[ns.x]", "(ns.x,)", "{1: ns.x}", "ns.x | batch(1)", "ns.x | map('list')", "cycler(ns.x)",
        "[ns.x].copy", "dict(a=ns.x)", "ns.x | select", "joiner(ns.x)",
        // Lazy filters keep their arguments.
        "[1] | batch(2, ns.x)", "[1] | slice(2, ns.x)", "[1] | map('default', ns.x)",
        "[1] | map(attribute='a', default=ns.x)", "[1] | map(attribute=ns.x)",
        "[1] | select('eq', ns.x)", "[1] | rejectattr('a', 'eq', ns.x)"}) {
    EXPECT_THAT(Render("{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = " +
                       std::string(step) + " %}{% endfor %}"),
                HasSubstr("nested deeper"))
        << step;
  }
  EXPECT_THAT(Render("{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% for a in [1] %}"
                     "{% set c = loop.changed(ns.x) %}{% set ns.x = loop %}{% endfor %}"
                     "{% endfor %}"),
              HasSubstr("nested deeper"));
  // Loops that were left hold the scope of their test, and that the loop before.
  EXPECT_EQ(Render("{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set x = ns.x %}"
                   "{% for a in [1, 2] if true %}{% set ns.x = loop %}{% break %}{% endfor %}"
                   "{% endfor %}ok"),
            "ok");
}

// Under AddressSanitizer these also show that nothing leaks.
TEST(JinjaBoundsTest, ValuesThatHoldThemselvesAreFreed) {
  EXPECT_EQ(Render("{% set ns = namespace() %}{% set ns.me = [ns] %}{{ ns.me | length }}"), "1");
  EXPECT_THAT(Render("{% set ns = namespace() %}{% set ns.me = [ns] %}{{ ns }}"),
              HasSubstr("nested too deeply to print"));
  EXPECT_EQ(Render("{% macro m() %}{{ m is callable }}{% endmacro %}{{ m() }}"), "True");
  EXPECT_EQ(Render("{% for x in [1, 2] %}{{ loop.changed(loop) }}{% endfor %}"), "TrueFalse");
  EXPECT_EQ(Render("{% for x in [1, 2] if loop is undefined %}{% set y = loop %}{% break %}"
                   "{% endfor %}{{ y is defined }}"),
            "False");
  EXPECT_EQ(Render("{% set ns = namespace() %}{% for i in [1, 2] %}{% macro m() %}{{ i }}"
                   "{% endmacro %}{% set ns.m = m %}{% set ns.l = loop %}{% endfor %}{{ ns.m() }}"),
            "2");
  EXPECT_EQ(Render("{% set ns = namespace() %}{% for x in [[]] recursive %}{% set ns.l = loop %}"
                   "{% endfor %}{{ ns.l([]) }}."),
            ".");
}

TEST(JinjaBoundsTest, CutTemplatesNeverCrash) {
  const std::string source =
      "{% macro m(a, b=[1, {'k': 2.5}]) -%} {{ a | join(', ') ~ b[0:1] }} {%- endmacro %}"
      "{% for x in [1, 2] if x is odd %}{{ loop.index }}{% else %}{# c #}{% endfor %}"
      "{% set ns = namespace(v='\\u00e9') %}{% set ns.v %}x{% endset %}{% raw %}{{{% endraw %}"
      "{% call(z) m(1) %}{{ z if z else 'n' }}{% endcall %}{% filter upper %}a{% endfilter %}";
  for (size_t size = 0; size <= source.size(); ++size) {
    const auto compiled = Template::Compile(std::string_view(source).substr(0, size));
    if (compiled.ok()) continue;
    EXPECT_THAT(compiled.status().message(), StartsWith("line 1: ")) << size;
  }
}

TEST(JinjaTest, OneTemplateRendersManyTimes) {
  const auto compiled = Template::Compile(
      "{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}"
      "{{ ns.n }}{{ x }}");
  ASSERT_TRUE(compiled.ok());
  for (const char* x : {"a", "b"}) {
    Dict inputs;
    inputs.Set(Value::Str("x"), Value::Str(x));
    EXPECT_EQ((*compiled)->Render(inputs).value(), "1" + std::string(x));
  }
}

}  // namespace
}  // namespace tern::jinja
