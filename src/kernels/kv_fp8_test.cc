// FP8 rows byte for byte: tests/data/kv holds what PyTorch's float8_e4m3fn gives.
#include <cmath>

#include "base/json.h"
#include "kernels/ops.h"
#include "kernels/testing.h"

namespace tern {
namespace {

// A safetensors file: 8 bytes of header length, a JSON header, data.
class Golden {
 public:
  explicit Golden(const std::string& name) : file_(testing::ReadTestData("kv/" + name)) {
    uint64_t length = 0;
    std::memcpy(&length, file_.data(), 8);
    header_ = std::move(ParseJson(file_.substr(8, length))).value();
    data_ = 8 + length;
  }
  std::string_view Bytes(const char* tensor) const {
    const auto& offsets = header_.at(tensor).at("data_offsets");
    const auto begin = offsets.at(0).get<size_t>(), end = offsets.at(1).get<size_t>();
    return std::string_view(file_).substr(data_ + begin, end - begin);
  }
  std::vector<float> Floats(const char* tensor) const {
    const std::string_view bytes = Bytes(tensor);
    std::vector<float> values(bytes.size() / 4);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<float> Bf16(const char* tensor) const {
    const std::string_view bytes = Bytes(tensor);
    std::vector<float> values;
    for (size_t i = 0; i < bytes.size(); i += 2) {
      uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + i, 2);
      values.push_back(FloatFromBf16(bits));
    }
    return values;
  }

 private:
  std::string file_;
  Json header_;
  size_t data_ = 0;
};

// One page of `tokens` rows.
struct Page {
  Page(KvFormat format, int64_t tokens, int64_t bytes)
      : slab{.format = format, .page_tokens = tokens, .offset_bytes = 64},
        memory(static_cast<size_t>(64 + bytes), std::byte{0xEE}),
        base(memory.data()) {}
  std::string Slab(int64_t begin, int64_t end) const {
    return {reinterpret_cast<const char*>(base) + 64 + begin, static_cast<size_t>(end - begin)};
  }
  KvSlab slab;
  std::vector<std::byte> memory;
  std::byte* base;
};

class KvFp8Test : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ops_ = std::move(Ops::Create(GetParam(), pool_)).value(); }
  ThreadPool pool_{1};
  std::unique_ptr<Ops> ops_;
};

TEST_P(KvFp8Test, EveryBf16NumberBecomesPyTorchsE4m3) {
  std::vector<float> all;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    all.push_back(FloatFromBf16(static_cast<uint16_t>(bits)));
  }
  const MlaShape shape{.heads = 1, .latent = 512, .rope = 0};
  Page page(KvFormat::kFp8E4m3, 128, 65536);
  const KvRun run{&page.base, 0, 0, 128};
  ops_->MlaWrite(shape, page.slab, {&run, 1}, all.data(), nullptr);
  const Golden golden("kv_rows.safetensors");
  EXPECT_EQ(page.Slab(0, 65536), golden.Bytes("bf16_to_e4m3"));
}

TEST_P(KvFp8Test, LatentRowsAreTheReferenceBytes) {
  const Golden golden("kv_rows.safetensors");
  const std::vector<float> rows = golden.Bf16("rows");
  const auto count = static_cast<int64_t>(rows.size()) / 576;
  std::vector<float> latent, rope;
  for (int64_t row = 0; row < count; ++row) {
    latent.insert(latent.end(), rows.begin() + row * 576, rows.begin() + row * 576 + 512);
    rope.insert(rope.end(), rows.begin() + row * 576 + 512, rows.begin() + (row + 1) * 576);
  }
  const MlaShape shape{.heads = 1, .latent = 512, .rope = 64};
  struct Case {
    KvFormat format;
    float scale;
    const char* tensor;
    int64_t row_bytes, value_bytes;  // the reference's rows: values, then scale bytes
  };
  for (const Case& c : {Case{KvFormat::kFp8E4m3, 1.0f, "fp8_e4m3", 576, 576},
                        Case{KvFormat::kFp8E4m3, 0.0625f, "fp8_e4m3_scale", 576, 576},
                        Case{KvFormat::kFp8Tiled, 1.0f, "fp8_tiled", 584, 576},
                        Case{KvFormat::kFp8DsMla, 1.0f, "fp8_ds_mla", 656, 656}}) {
    Page page(c.format, count, count * c.row_bytes);
    page.slab.k_scale = c.scale;
    const KvRun run{&page.base, 0, 0, count};
    ops_->MlaWrite(shape, page.slab, {&run, 1}, latent.data(), rope.data());
    const std::string_view expected = golden.Bytes(c.tensor);
    ASSERT_EQ(static_cast<int64_t>(expected.size()), count * c.row_bytes);
    for (int64_t row = 0; row < count; ++row) {
      const int64_t scales = c.row_bytes - c.value_bytes;
      const std::string got = page.Slab(row * c.value_bytes, (row + 1) * c.value_bytes) +
                              page.Slab(count * c.value_bytes + row * scales,
                                        count * c.value_bytes + (row + 1) * scales);
      ASSERT_EQ(got, expected.substr(static_cast<size_t>(row * c.row_bytes),
                                     static_cast<size_t>(c.row_bytes)))
          << c.tensor << " row " << row;
    }
  }
}

TEST_P(KvFp8Test, GroupedQueryRowsAreTheReferenceBytes) {
  const Golden golden("gqa_index_rows.safetensors");
  const std::vector<float> k = golden.Floats("gqa_k"), v = golden.Floats("gqa_v");
  const GqaShape shape{.heads = 3, .kv_heads = 3, .head_dim = 24};
  const int64_t rows = 29, numbers = rows * 72;
  const KvRun run_of{nullptr, 0, 0, rows};
  for (const bool tiled : {false, true}) {
    Page page(tiled ? KvFormat::kFp8Tiled : KvFormat::kFp8E4m3, rows, 2 * numbers + rows * 8);
    page.slab.k_scale = 0.05f;
    page.slab.v_scale = 0.11f;
    KvRun run = run_of;
    run.pages = &page.base;
    ops_->GqaWrite(shape, page.slab, {&run, 1}, k.data(), v.data());
    EXPECT_EQ(page.Slab(0, numbers), golden.Bytes(tiled ? "gqa_tiled_k" : "gqa_e4m3_k"));
    EXPECT_EQ(page.Slab(numbers, 2 * numbers), golden.Bytes(tiled ? "gqa_tiled_v" : "gqa_e4m3_v"));
    EXPECT_EQ(page.Slab(2 * numbers, 2 * numbers + rows * 8),
              tiled ? std::string(golden.Bytes("gqa_tiled_scales"))
                    : std::string(static_cast<size_t>(rows * 8), '\xEE'));
  }
}

TEST_P(KvFp8Test, IndexerKeysAreTheReferenceBytes) {
  const Golden golden("gqa_index_rows.safetensors");
  const std::vector<float> k = golden.Floats("index");
  const IndexerShape shape{.heads = 1, .dim = 40};
  for (const KvFormat format : {KvFormat::kFp8E4m3, KvFormat::kFp8Tiled, KvFormat::kFp8DsMla}) {
    Page page(format, 29, 29 * 44);
    const KvRun run{&page.base, 0, 0, 29};
    ops_->IndexerWrite(shape, page.slab, {&run, 1}, k.data());
    EXPECT_EQ(page.Slab(0, 29 * 40), golden.Bytes("index_codes"));
    EXPECT_EQ(page.Slab(29 * 40, 29 * 44), golden.Bytes("index_scales"));
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, KvFp8Test, ::testing::ValuesIn(Ops::SupportedIsas()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tern
