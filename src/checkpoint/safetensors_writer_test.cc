#include "checkpoint/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "checkpoint/safetensors.h"

namespace tern {
namespace {

using ::testing::HasSubstr;

TEST(SafetensorsWriterTest, ReadersFindEveryTensorAlignedToItsType) {
  const std::vector<SafetensorsEntry> entries = {
      {"b", DType::kF8E4M3, Shape{3, 5}}, {"a\"\\", DType::kBF16, Shape{7}},
      {"c", DType::kI64, Shape{2}},       {"d", DType::kF32, Shape{}},
      {"e", DType::kI32, Shape{0, 4}},
  };
  const auto layout = LayOutSafetensors(entries);
  ASSERT_TRUE(layout.ok()) << layout.status().message();
  std::string file = layout->header;
  file.resize(layout->file_bytes);
  const auto tensors =
      ParseSafetensors(std::as_bytes(std::span(file.data(), file.size())), "made up");
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  ASSERT_EQ(tensors->size(), entries.size());
  for (const SafetensorsTensor& tensor : *tensors) {
    const auto entry = std::find_if(entries.begin(), entries.end(),
                                    [&](const auto& e) { return e.name == tensor.name; });
    ASSERT_NE(entry, entries.end()) << tensor.name;
    EXPECT_EQ(tensor.view.dtype, entry->dtype);
    EXPECT_EQ(tensor.view.shape, entry->shape);
    const auto at = static_cast<uint64_t>(tensor.view.bytes.data() -
                                          reinterpret_cast<const std::byte*>(file.data()));
    EXPECT_EQ(at, layout->offsets[static_cast<size_t>(entry - entries.begin())]);
    EXPECT_EQ(at % static_cast<uint64_t>(InfoOf(tensor.view.dtype).block_bytes), 0u);
  }
}

TEST(SafetensorsWriterTest, RefusesWhatTheFormatCannotHold) {
  const std::vector<SafetensorsEntry> twice = {{"a", DType::kF32, Shape{1}},
                                               {"a", DType::kF32, Shape{2}}};
  EXPECT_THAT(LayOutSafetensors(twice).status().message(), HasSubstr("'a'"));
  const int64_t big = int64_t{1} << 62;
  const std::vector<SafetensorsEntry> overflow = {{"x", DType::kF32, Shape{big}}};
  EXPECT_THAT(LayOutSafetensors(overflow).status().message(), HasSubstr("'x'"));
  const std::vector<SafetensorsEntry> sum = {{"x", DType::kU8, Shape{big}},
                                             {"y", DType::kU8, Shape{big}},
                                             {"z", DType::kU8, Shape{big}},
                                             {"zz", DType::kU8, Shape{big}}};
  EXPECT_FALSE(LayOutSafetensors(sum).ok());
}

TEST(SafetensorsWriterTest, TheIndexIsReadBack) {
  const std::string text =
      SafetensorsIndexJson({{"b", "model-00002-of-00002.safetensors"}, {"a", "x.safetensors"}}, 12);
  const auto map = ParseSafetensorsIndex(text, "index");
  ASSERT_TRUE(map.ok()) << map.status().message();
  ASSERT_EQ(map->size(), 2u);
  EXPECT_EQ((*map)[0].first, "a");
  EXPECT_EQ((*ParseJson(text))["metadata"]["total_size"], 12);
}

}  // namespace
}  // namespace tern
