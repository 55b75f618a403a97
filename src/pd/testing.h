// What the tests of pd share: golden frames, small rows, pages with known contents. Tests only.
// Thread: plain values.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "pd/receiver.h"
#include "pd/sender.h"
#include "tensor/number.h"

namespace tern::testing {

// tests/data/pd/frames.json.
inline std::map<std::string, std::vector<std::byte>> GoldenFrames() {
  const Json json = ParseJsonFile(TERN_SOURCE_DIR "/tests/data/pd/frames.json").value();
  std::map<std::string, std::vector<std::byte>> frames;
  for (const auto& [name, hex] : json.items()) {
    const auto text = hex.get<std::string>();
    for (size_t i = 0; i < text.size(); i += 2) {
      frames[name].push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
    }
  }
  return frames;
}

// The receiver of make_frames.py, without conversion.
inline PdHello GoldenHello() {
  PdHello hello{.boot_nonce = 0x1122334455667788,
                .page_tokens = 64,
                .landing_slots = 8,
                .max_body_bytes = 1 << 20};
  for (int i = 0; i < 32; ++i) hello.model_id[static_cast<size_t>(i)] = std::byte(i);
  hello.nonce.fill(std::byte{0xA1});
  hello.layers = {
      {.spec = {.kind = KvLayerSpec::Kind::kGqa,
                .kv_heads = 2,
                .head_dim = 16,
                .k_scale = 0.5f,
                .v_scale = 0.25f},
       .format = KvFormat::kFp8E4m3},
      {.spec = {.kind = KvLayerSpec::Kind::kMla, .latent = 64, .rope = 8, .index_dim = 40},
       .format = KvFormat::kBf16,
       .index_format = KvFormat::kBf16}};
  return hello;
}

// Both kinds of rows where `format` allows it.
inline std::vector<KvLayerSpec> SmallSpecs(KvFormat format) {
  std::vector<KvLayerSpec> specs = {
      {.kind = KvLayerSpec::Kind::kMla, .latent = 160, .rope = 24, .index_dim = 40},
      {.kind = KvLayerSpec::Kind::kMla, .latent = 32, .rope = 8}};
  if (format != KvFormat::kFp8DsMla) {
    specs.push_back({.kind = KvLayerSpec::Kind::kGqa, .kv_heads = 3, .head_dim = 24});
  }
  for (KvLayerSpec& spec : specs) {
    spec.k_scale = 0.0625f;
    spec.v_scale = 0.11f;
  }
  return specs;
}

inline PdRows RowsWith(std::vector<KvLayerSpec> specs, KvFormat format, int64_t page_tokens) {
  PageFormat page = PageFormat::Make(specs, format, page_tokens).value();
  return {std::move(specs), std::move(page)};
}

// Pages on the heap, each with its bases; filled with a byte.
struct TestPages {
  TestPages(const PageFormat& format, int64_t tokens, std::byte fill = std::byte{0xEE})
      : page_bytes(static_cast<size_t>(format.page_bytes())) {
    const auto pages =
        static_cast<size_t>((tokens + format.page_tokens() - 1) / format.page_tokens());
    memory.assign(pages * page_bytes, fill);
    for (size_t i = 0; i < pages; ++i) bases.push_back(memory.data() + i * page_bytes);
  }
  TestPages(const TestPages&) = delete;
  size_t page_bytes;
  std::vector<std::byte> memory;
  std::vector<std::byte*> bases;
};

// Fills the rows of BF16 pages with random numbers, some of them large, zero or special.
inline void FillBf16(const PageFormat& format, int64_t tokens, uint32_t seed, TestPages* pages) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  for (int64_t layer = 0; layer < format.layers(); ++layer) {
    for (const KvRowPart& part : format.row_parts(layer)) {
      for (int64_t position = 0; position < tokens; ++position) {
        std::byte* row = pages->bases[static_cast<size_t>(position / format.page_tokens())] +
                         part.offset_bytes + position % format.page_tokens() * part.row_bytes;
        for (int64_t i = 0; i < part.row_bytes / 2; ++i) {
          const uint32_t kind = generator() % 64;
          const float x = kind == 0   ? 0.0f
                          : kind == 1 ? 3e4f
                          : kind == 2 ? -1e-6f
                                      : normal(generator);
          const uint16_t bits = Bf16FromFloat(x);
          std::memcpy(row + 2 * i, &bits, 2);
        }
      }
    }
  }
}

}  // namespace tern::testing
