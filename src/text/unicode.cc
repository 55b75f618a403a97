#include "text/unicode.h"

#include <array>
#include <iterator>
#include <map>
#include <vector>

namespace tern {
namespace {

constexpr uint32_t kEntries[] = {
#include "text/unicode_tables.inc"
};

constexpr int kBlockBits = 8;
constexpr size_t kBlockSize = size_t{1} << kBlockBits;
constexpr size_t kBlocks = 0x110000 / kBlockSize;

// A two-stage table: equal blocks of 256 code points are stored once.
struct Tables {
  using Block = std::array<uint8_t, kBlockSize>;
  std::array<UnicodeSet, 256> sets;  // by the low byte of an entry
  std::array<uint16_t, kBlocks> block_of;
  std::vector<Block> blocks;
  std::array<UnicodeSet, 128> ascii;

  Tables() {
    for (uint32_t low = 0; low < 256; ++low) {
      const uint32_t category = low & 31;
      sets[low] = (category < kGeneralCategories ? UnicodeSet{1} << category : 0) |
                  (low >> 5) << kGeneralCategories;
    }
    std::map<Block, uint16_t> seen;
    size_t entry = 0;
    for (size_t b = 0; b < kBlocks; ++b) {
      Block block;
      for (size_t i = 0; i < kBlockSize; ++i) {
        const size_t code_point = b * kBlockSize + i;
        while (entry + 1 < std::size(kEntries) && kEntries[entry + 1] >> 8 <= code_point) ++entry;
        block[i] = static_cast<uint8_t>(kEntries[entry]);
      }
      const auto [it, added] = seen.emplace(block, static_cast<uint16_t>(blocks.size()));
      if (added) blocks.push_back(block);
      block_of[b] = it->second;
    }
    for (char32_t c = 0; c < 128; ++c) ascii[c] = sets[blocks[block_of[0]][c]];
  }
};

const Tables& GetTables() {
  static const Tables tables;
  return tables;
}

}  // namespace

UnicodeSet PropertiesOf(char32_t code_point) {
  const Tables& t = GetTables();
  return t.sets[t.blocks[t.block_of[code_point >> kBlockBits]][code_point & (kBlockSize - 1)]];
}

TextChar CharAt(std::string_view text, size_t pos) {
  if (pos >= text.size()) return {};
  const auto byte = static_cast<unsigned char>(text[pos]);
  if (byte < 0x80) return {byte, GetTables().ascii[byte], 1};
  TextChar c;
  c.code_point = DecodeUtf8(text, pos, &c.size_bytes);
  c.properties = PropertiesOf(c.code_point);
  return c;
}

}  // namespace tern
