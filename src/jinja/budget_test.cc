// What a render really holds, counted in this program's operator new, stays within its budget.
#include "jinja/budget.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/test_allocation.h"
#include "jinja/template.h"

namespace tern::jinja {
namespace {

struct Rendered {
  Status status;
  int64_t peak_bytes = 0;  // held at once, above what was held before
};

Rendered RenderCounted(const std::string& source, const Limits& limits) {
  const auto compiled = Template::Compile(source);
  EXPECT_TRUE(compiled.ok()) << compiled.status().message();
  if (!compiled.ok()) return {compiled.status()};
  const int64_t before = TestAllocation::live_bytes;
  TestAllocation::peak_bytes = before;
  Rendered rendered;
  rendered.status = (*compiled)->Render(Dict(), limits).status();
  rendered.peak_bytes = TestAllocation::peak_bytes - before;
  return rendered;
}

std::string Loop(const std::string& body) {
  return "{% set ns = namespace(x=0) %}{% for i in range(100000) %}" + body + "{% endfor %}";
}

TEST(JinjaBudgetTest, WhatARenderHoldsIsWithinItsMemory) {
  const std::string name(2000, 'n');
  const std::string sets = [] {
    std::string text;
    for (int i = 0; i < 50; ++i) text += "{% set v" + std::to_string(i) + " = i %}";
    return text;
  }();
  const std::string attributes = [] {
    std::string text;
    for (int i = 0; i < 50; ++i) text += "{% set a.v" + std::to_string(i) + " = i %}";
    return text;
  }();
  const std::string filtered = "{% for j in [1] if j %}{% endfor %}";
  const std::string keywords = [] {
    std::string text = "{% set k = {";
    for (int i = 0; i < 300; ++i) text += "'key" + std::to_string(i) + "': 1,";
    return text + "} %}";
  }();
  for (const std::string& source : std::vector<std::string>{
           // Whatever is kept until the end: scopes of filtered and recursive loops, of macros and
           // call blocks, namespaces, loops that have seen something.
           Loop(filtered),
           Loop(sets + filtered),
           Loop("{% set " + name + " = i %}" + filtered),
           "{% for " + name + " in range(100000) %}" + filtered + "{% endfor %}",
           Loop("{% for j in [1] recursive %}{% endfor %}"),
           Loop("{% macro m() %}{% endmacro %}"),
           Loop("{% macro " + name + "() %}{% endmacro %}"),
           "{% macro m() %}{{ caller() }}{% endmacro %}" + Loop("{% call m() %}{% endcall %}"),
           Loop("{% for j in [1] %}{% set a = loop.changed(j) %}{% endfor %}"),
           Loop("{% set a = namespace(x=i) %}"),
           keywords + Loop("{% set a = namespace(**k) %}"),
           keywords + "{% macro m() %}{% set ns2 = namespace(k=kwargs) %}{% endmacro %}" +
               Loop("{{ m(**k) }}"),
           "{% macro m() %}{% set ns2 = namespace(k=varargs) %}{% endmacro %}" +
               Loop("{{ m(*range(300)) }}"),
           "{% set l = range(300) | list %}" + Loop("{% set a = namespace(x=cycler(*l)) %}"),
           Loop("{% set a = " + name + " %}" + filtered),
           Loop("{% set a = namespace() %}" + attributes),
           Loop("{% set a = namespace(" + name + "=i) %}"),
           "{% set l = range(300) | list %}" +
               Loop("{% for j in [1] %}{% set a = loop.changed(*l) %}{% endfor %}"),
           Loop("{% set a = [1].copy %}" + filtered),
           // Chains: each value holds the one before.
           Loop("{% set ns.x = cycler(ns.x) if i % 100 else 0 %}{% set b = namespace(y=ns.x) %}"),
           Loop("{% set x = ns.x %}{% for a in [1, 2] if true %}{% set ns.x = loop %}{% break %}"
                "{% endfor %}"),
       }) {
    const Limits limits = {.memory_bytes = 4 << 20};
    const Rendered rendered = RenderCounted(source, limits);
    EXPECT_LE(rendered.peak_bytes, limits.memory_bytes + (1 << 20))
        << source.substr(0, 300) << ": " << rendered.status.message();
    // Nothing else ended it before it could hold much.
    EXPECT_TRUE(rendered.status.ok() ||
                rendered.status.message().find("bytes of values") != std::string::npos)
        << source.substr(0, 300) << ": " << rendered.status.message();
  }
}

// What jinja2 computes when it compiles a template is computed once in a render, whatever holds it.
TEST(JinjaBudgetTest, ExpressionsAroundASliceTakeTheirOwnSteps) {
  std::string sum = "n[0:]";
  for (int i = 0; i < 40; ++i) sum = "(" + sum + "+'a')";
  const std::string once = "{% set n = 'abc' %}{% set x = " + sum + " %}";
  EXPECT_TRUE(RenderCounted(once, {.steps = 500}).status.ok());
  const std::string often =
      "{% set n = 'abc' %}{% for i in range(1000) %}{% set x = " + sum + " %}{% endfor %}";
  EXPECT_TRUE(RenderCounted(often, {.steps = 150'000}).status.ok());
  // Nothing here has a value before the template runs, though nothing has a name.
  std::string unknown = "(('abc' if false)|default('abc'))[0:]";
  for (int i = 0; i < 40; ++i) unknown = "(" + unknown + "~'a')";
  EXPECT_TRUE(RenderCounted("{% set x = " + unknown + " %}", {.steps = 500}).status.ok());
}

// Arguments spread from a dict are compared with those that are written, not with each other.
TEST(JinjaBudgetTest, SpreadArgumentsTakeStepsByTheirNumber) {
  std::string dict = "{% set k = {";
  for (int i = 0; i < 2000; ++i) dict += "'key" + std::to_string(i) + "': 1,";
  dict += "} %}";
  EXPECT_FALSE(RenderCounted(dict + "{% for i in range(1000) %}{% set a = dict(**k) %}{% endfor %}",
                             {.steps = 1'000'000})
                   .status.ok());
}

}  // namespace
}  // namespace tern::jinja
