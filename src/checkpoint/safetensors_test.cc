#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "checkpoint/test_files.h"

namespace tern {
namespace {

using test::SafetensorsBytes;
using ::testing::HasSubstr;

Result<std::vector<SafetensorsTensor>> Parse(const std::string& bytes) {
  return ParseSafetensors(std::as_bytes(std::span(bytes)), "x.safetensors");
}

// Expects an error that names the file and holds `what`.
void ExpectError(const std::string& bytes, const std::string& what) {
  const auto result = Parse(bytes);
  ASSERT_FALSE(result.ok()) << what;
  EXPECT_THAT(result.status().message(), HasSubstr("x.safetensors"));
  EXPECT_THAT(result.status().message(), HasSubstr(what));
}

const char kGood[] =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
    R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

TEST(SafetensorsTest, ReadsTensorsInTheOrderOfTheirBytes) {
  const std::string bytes =
      SafetensorsBytes(kGood, test::Raw(1.5f) + test::Raw(-2.0f) + std::string(12, 'z'));
  const auto tensors = Parse(bytes);
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  ASSERT_EQ(tensors->size(), 2u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[0].view.dtype, DType::kF32);
  EXPECT_EQ((*tensors)[0].view.shape, Shape({2}));
  float second = 0;
  std::memcpy(&second, (*tensors)[0].view.bytes.data() + 4, 4);
  EXPECT_EQ(second, -2.0f);
  EXPECT_EQ((*tensors)[1].name, "b");
  EXPECT_EQ((*tensors)[1].view.shape, Shape({2, 3}));
  EXPECT_EQ((*tensors)[1].view.bytes.size(), 12u);
}

TEST(SafetensorsTest, ReadsAFileWrittenByTheReferenceImplementation) {
  const std::string path = "tests/data/golden/llama/golden.safetensors";
  const auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto tensors = ParseSafetensors((*file)->bytes(), path);
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  std::map<std::string, std::string> shapes;
  for (const auto& t : *tensors) shapes[t.name] = t.view.shape.ToString();
  EXPECT_EQ(
      shapes,
      (std::map<std::string, std::string>{
          {"greedy", "[16]"}, {"logits", "[40, 256]"}, {"margin", "[16]"}, {"prompt", "[40]"}}));
}

TEST(SafetensorsTest, EmptyTensorsAndScalarsAreFine) {
  const auto tensors =
      Parse(SafetensorsBytes(R"({"e":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]},)"
                             R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
                             "abcd"));
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  EXPECT_EQ(tensors->size(), 2u);
}

TEST(SafetensorsTest, EveryTruncationIsAnError) {
  const std::string whole = SafetensorsBytes(kGood, std::string(20, 'x'));
  ASSERT_TRUE(Parse(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto result = Parse(whole.substr(0, size));
    ASSERT_FALSE(result.ok()) << size;
    EXPECT_THAT(result.status().message(), HasSubstr("x.safetensors"));
  }
}

TEST(SafetensorsTest, EveryFlippedByteEndsInATensorInsideTheFileOrInAnError) {
  const std::string whole = SafetensorsBytes(kGood, std::string(20, 'x'));
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int flip : {1, 0x10, 0x80, 0xFF}) {
      std::string bytes = whole;
      bytes[i] = static_cast<char>(bytes[i] ^ flip);
      const auto result = Parse(bytes);
      if (!result.ok()) continue;
      for (const auto& tensor : *result) {
        const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
        ASSERT_GE(tensor.view.bytes.data(), begin);
        ASSERT_LE(tensor.view.bytes.data() + tensor.view.bytes.size(), begin + bytes.size());
      }
    }
  }
}

std::string OneTensor(const std::string& entry) { return R"({"t":)" + entry + "}"; }

TEST(SafetensorsTest, HostileHeadersAreNamed) {
  const std::string data(8, 'x');
  const auto expect = [&](const std::string& header, const std::string& what) {
    ExpectError(SafetensorsBytes(header, data), what);
  };
  ExpectError(test::Raw<uint64_t>(2) + "{}x", "belong to none");
  ExpectError(test::Raw<uint64_t>(uint64_t{1} << 60) + "{}", "exceeds the limit");
  ExpectError(test::Raw<uint64_t>(99) + "{}", "runs past the end");
  expect("[]", "not a JSON object");
  expect("{", "not valid JSON");
  expect("", "not valid JSON");
  expect(std::string(1000, '[') + std::string(1000, ']'), "nested deeper");
  expect(OneTensor("7"), "tensor 't': entry is no object");
  expect(OneTensor("{}"), "tensor 't': dtype");
  expect(OneTensor(R"({"dtype":"F64","shape":[1],"data_offsets":[0,8]})"),
         "tensor 't': unsupported dtype 'F64'");
  expect(OneTensor(R"({"dtype":"F32","data_offsets":[0,8]})"), "shape is missing");
  expect(OneTensor(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), "no dimension");
  expect(OneTensor(R"({"dtype":"F32","shape":[2.5],"data_offsets":[0,8]})"), "no dimension");
  expect(OneTensor(R"({"dtype":"F32","shape":[1,1,1,1,2],"data_offsets":[0,8]})"), "5 dimensions");
  expect(OneTensor(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), "does not fit");
  expect(OneTensor(R"({"dtype":"BF16","shape":[2],"data_offsets":[0,8]})"), "does not fit");
  expect(OneTensor(R"({"dtype":"F32","shape":[1152921504606846976],"data_offsets":[0,8]})"),
         "does not fit");  // 2^60 elements
  expect(OneTensor(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]})"),
         "does not fit");  // 2^64 elements
  expect(OneTensor(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), "lie outside");
  expect(OneTensor(R"({"dtype":"F32","shape":[2],"data_offsets":[8,16]})"), "lie outside");
  expect(OneTensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), "not a pair");
  expect(OneTensor(R"({"dtype":"F32","shape":[2],"data_offsets":[-1,8]})"), "not a pair");
  expect(OneTensor(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"), "hole");
  expect(OneTensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"), "belong to none");
  expect(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
         R"("t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
         "tensor 't': occurs twice");
  expect(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
         R"("u":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
         "tensor 'u': overlaps");
  expect(R"({")" + std::string(5000, 'n') + R"(":1})", "no plain text of at most 1024 bytes");
}

// What an error repeats of a file must not fill or steer the reader's terminal.
TEST(SafetensorsTest, TextThatIsNoNameIsNotRepeated) {
  const std::string entry = R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})";
  for (const std::string& name : {std::string(R"(a\u001b[2J)"), std::string(R"(a\nb)")}) {
    ExpectError(SafetensorsBytes("{\"" + name + entry, ""),
                "x.safetensors: a tensor's name is no plain text");
    const auto index = ParseSafetensorsIndex(R"({"weight_map":{")" + name + R"(":"b"}})", "i.json");
    EXPECT_THAT(index.status().message(), HasSubstr("i.json: a tensor's name is no plain text"));
  }
  const std::string dtype = std::string(1000, 'A');
  ExpectError(
      SafetensorsBytes(R"({"a":{"dtype":")" + dtype + R"(","shape":[],"data_offsets":[0,0]}})", ""),
      "tensor 'a': its dtype is no plain text");
  const auto index = ParseSafetensorsIndex(
      R"({"weight_map":{"a":")" + std::string(1000, 'b') + R"("}})", "i.json");
  EXPECT_THAT(index.status().message(), HasSubstr("no plain file name"));
}

TEST(SafetensorsIndexTest, MapsTensorsToPlainFileNames) {
  const auto index = ParseSafetensorsIndex(R"({"weight_map":{"a":"m-1.safetensors"}})", "i.json");
  ASSERT_TRUE(index.ok());
  EXPECT_EQ(*index, (std::vector<std::pair<std::string, std::string>>{{"a", "m-1.safetensors"}}));
  const auto expect = [](const char* json, const char* what) {
    const auto bad = ParseSafetensorsIndex(json, "i.json");
    ASSERT_FALSE(bad.ok()) << json;
    EXPECT_THAT(bad.status().message(), HasSubstr("i.json"));
    EXPECT_THAT(bad.status().message(), HasSubstr(what));
  };
  expect("{}", "weight_map is missing");
  expect(R"({"weight_map":[]})", "weight_map is missing");
  expect(R"({"weight_map":{}})", "empty");
  expect(R"({"weight_map":{"a":1}})", "'a'");
  expect(R"({"weight_map":{"a":"../x"}})", "no plain file name");
  expect(R"({"weight_map":{"a":"/etc/passwd"}})", "no plain file name");
  expect(R"({"weight_map":{"a":""}})", "no plain file name");
  expect(R"({"weight_map":{"a":"x","a":"y"}})", "occurs twice");
}

}  // namespace
}  // namespace tern
