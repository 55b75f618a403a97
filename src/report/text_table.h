// TextTable: rows of text in aligned columns, for a terminal or a log.
// Owner: whoever prints it. Thread: a value.
#pragma once

#include <string>
#include <vector>

namespace tern {

class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string name;
    Align align = Align::kLeft;
  };

  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Missing cells are empty, those beyond the last column are dropped.
  void AddRow(std::vector<std::string> cells);
  // The header, a line below it, and the rows; columns two spaces apart, no spaces at line ends.
  // A code point counts as one column wide; line breaks and tabs in a cell become spaces.
  std::string ToText() const;
  // The same as a Markdown table; '|' in cells is escaped.
  std::string ToMarkdown() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace tern
