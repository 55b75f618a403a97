#include "report/text_table.h"

#include <gtest/gtest.h>

namespace tern {
namespace {

TEST(TextTable, AlignsByCodePointsAndLeavesNoSpacesAtLineEnds) {
  TextTable table({{"name"}, {"value", TextTable::Align::kRight}, {"note"}});
  table.AddRow({"caf\u00e9", "1.5", "a\nb"});
  table.AddRow({"longer name", "12.25"});
  EXPECT_EQ(table.ToText(),
            "name         value  note\n"
            "-----------  -----  ----\n"
            "caf\u00e9           1.5  a b\n"
            "longer name  12.25\n");
  EXPECT_EQ(table.ToMarkdown(),
            "| name | value | note |\n| --- | ---: | --- |\n| caf\u00e9 | 1.5 | a b |\n"
            "| longer name | 12.25 |  |\n");
}

}  // namespace
}  // namespace tern
