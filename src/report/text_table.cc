#include "report/text_table.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/utf8.h"

namespace tern {
namespace {

constexpr std::string_view kGap = "  ";

size_t WidthOf(std::string_view text) {
  size_t width = 0;
  for (size_t at = 0; at < text.size(); ++width) {
    size_t length = 0;
    DecodeUtf8(text, at, &length);
    at += length;
  }
  return width;
}

std::string OneLine(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  }
  return text;
}

std::string Padded(const std::string& cell, size_t width, TextTable::Align align) {
  const std::string pad(width - WidthOf(cell), ' ');
  return align == TextTable::Align::kRight ? pad + cell : cell + pad;
}

}  // namespace

void TextTable::AddRow(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (std::string& cell : cells) cell = OneLine(std::move(cell));
  rows_.push_back(std::move(cells));
}

std::string TextTable::ToText() const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = WidthOf(columns_[c].name);
    for (const auto& row : rows_) width = std::max(width, WidthOf(row[c]));
    widths.push_back(width);
  }
  std::string text;
  const auto add_line = [&](const std::function<std::string(size_t)>& cell) {
    for (size_t c = 0; c < columns_.size(); ++c) {
      if (c > 0) text += kGap;
      text += Padded(cell(c), widths[c], columns_[c].align);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  };
  add_line([&](size_t c) { return columns_[c].name; });
  add_line([&](size_t c) { return std::string(widths[c], '-'); });
  for (const auto& row : rows_) add_line([&](size_t c) { return row[c]; });
  return text;
}

std::string TextTable::ToMarkdown() const {
  const auto add_cell = [](const std::string& cell, std::string* text) {
    *text += ' ';
    for (const char c : cell) {
      if (c == '|') *text += '\\';
      *text += c;
    }
    *text += " |";
  };
  std::string text = "|";
  for (const Column& column : columns_) add_cell(column.name, &text);
  text += "\n|";
  for (const Column& column : columns_) {
    text += column.align == Align::kRight ? " ---: |" : " --- |";
  }
  text += "\n";
  for (const auto& row : rows_) {
    text += "|";
    for (const std::string& cell : row) add_cell(cell, &text);
    text += "\n";
  }
  return text;
}

}  // namespace tern
