#include "checkpoint/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "checkpoint/field_reader.h"

namespace tern {

static_assert(std::endian::native == std::endian::little, "GGUF fields are read as they lie");

namespace {

constexpr uint32_t kMaxDims = 4;
constexpr int kMaxArrayDepth = 4;
constexpr uint64_t kMaxNameBytes = 256;  // of a key or a tensor; published ones stay below 64
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;

struct TensorType {
  uint32_t id;
  const char* name;
  std::optional<DType> dtype;  // nullopt: known by name only
};

constexpr std::array<TensorType, 27> kTensorTypes = {{
    {0, "F32", DType::kF32},      {1, "F16", DType::kF16},       {2, "Q4_0", DType::kQ4_0},
    {3, "Q4_1", DType::kQ4_1},    {6, "Q5_0", std::nullopt},     {7, "Q5_1", std::nullopt},
    {8, "Q8_0", DType::kQ8_0},    {9, "Q8_1", std::nullopt},     {10, "Q2_K", std::nullopt},
    {11, "Q3_K", std::nullopt},   {12, "Q4_K", DType::kQ4_K},    {13, "Q5_K", std::nullopt},
    {14, "Q6_K", DType::kQ6_K},   {15, "Q8_K", std::nullopt},    {16, "IQ2_XXS", std::nullopt},
    {17, "IQ2_XS", std::nullopt}, {18, "IQ3_XXS", std::nullopt}, {20, "IQ4_NL", std::nullopt},
    {21, "IQ3_S", std::nullopt},  {22, "IQ2_S", std::nullopt},   {23, "IQ4_XS", std::nullopt},
    {24, "I8", DType::kI8},       {25, "I16", DType::kI16},      {26, "I32", DType::kI32},
    {27, "I64", DType::kI64},     {28, "F64", std::nullopt},     {30, "BF16", DType::kBF16},
}};

// Bytes of one element, 0 for strings and arrays.
uint64_t ScalarBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

template <typename T>
T LoadAs(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// REQUIRES: type is a scalar and `bytes` holds ScalarBytes(type).
GgufValue DecodeScalar(GgufType type, const std::byte* bytes) {
  switch (type) {
    case GgufType::kU8:
      return int64_t{LoadAs<uint8_t>(bytes)};
    case GgufType::kI8:
      return int64_t{LoadAs<int8_t>(bytes)};
    case GgufType::kU16:
      return int64_t{LoadAs<uint16_t>(bytes)};
    case GgufType::kI16:
      return int64_t{LoadAs<int16_t>(bytes)};
    case GgufType::kU32:
      return int64_t{LoadAs<uint32_t>(bytes)};
    case GgufType::kI32:
      return int64_t{LoadAs<int32_t>(bytes)};
    case GgufType::kI64:
      return LoadAs<int64_t>(bytes);
    case GgufType::kU64: {
      const auto value = LoadAs<uint64_t>(bytes);
      if (value <= static_cast<uint64_t>(INT64_MAX)) return static_cast<int64_t>(value);
      return value;
    }
    case GgufType::kF32:
      return double{LoadAs<float>(bytes)};
    case GgufType::kF64:
      return LoadAs<double>(bytes);
    case GgufType::kBool:
      return LoadAs<uint8_t>(bytes) != 0;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return int64_t{0};
}

}  // namespace

// Reads the file front to back; every read is checked against the bytes that are left.
class GgufParser {
 public:
  GgufParser(std::span<const std::byte> file, const std::string& path) : file_(file) {
    gguf_.path_ = path;
  }

  Result<Gguf> Run() {
    uint64_t tensor_count = 0, key_count = 0;
    TERN_RETURN_IF_ERROR(ReadPreamble(&tensor_count, &key_count));
    for (uint64_t i = 0; i < key_count; ++i) TERN_RETURN_IF_ERROR(ReadKey(i));
    TERN_ASSIGN_OR_RETURN(const auto split, gguf_.Int("split.count"));
    if (split.value_or(1) > 1) {
      return Unimplemented(
          fmt::format("{}: one of {} split GGUF files; merge them first", gguf_.path_, *split));
    }
    for (uint64_t i = 0; i < tensor_count; ++i) TERN_RETURN_IF_ERROR(ReadTensorInfo(i));
    TERN_RETURN_IF_ERROR(PlaceTensors());
    return std::move(gguf_);
  }

 private:
  struct Placement {
    size_t tensor;
    uint64_t offset, bytes;
  };

  Status Bad(const std::string& what) const {
    return InvalidArgument(fmt::format("{}: {}", gguf_.path_, what));
  }
  uint64_t left() const { return file_.size() - position_; }

  template <typename T>
  Status Read(T* value, std::string_view what) {
    if (left() < sizeof(T)) {
      return Bad(fmt::format("the file ends at byte {}, inside {}", file_.size(), what));
    }
    *value = LoadAs<T>(file_.data() + position_);
    position_ += sizeof(T);
    return OkStatus();
  }

  Status ReadBytes(uint64_t count, std::string_view what, std::span<const std::byte>* bytes) {
    if (count > left()) {
      return Bad(fmt::format("{} claims {} bytes, {} are left in the file", what, count, left()));
    }
    *bytes = file_.subspan(position_, count);
    position_ += count;
    return OkStatus();
  }

  Status ReadString(std::string_view what, std::string_view* text) {
    uint64_t size = 0;
    std::span<const std::byte> bytes;
    TERN_RETURN_IF_ERROR(Read(&size, what));
    TERN_RETURN_IF_ERROR(ReadBytes(size, what, &bytes));
    *text = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    return OkStatus();
  }

  Status ReadName(const std::string& what, std::string_view* name) {
    TERN_RETURN_IF_ERROR(ReadString(what, name));
    if (name->empty() || name->size() > kMaxNameBytes) {
      return Bad(
          fmt::format("{} has {} bytes, 1 to {} are allowed", what, name->size(), kMaxNameBytes));
    }
    if (config::IsPlainText(*name, kMaxNameBytes)) return OkStatus();
    return Bad(fmt::format("{} is no plain text", what));
  }

  Status ReadType(std::string_view what, GgufType* type) {
    uint32_t id = 0;
    TERN_RETURN_IF_ERROR(Read(&id, what));
    if (id > static_cast<uint32_t>(GgufType::kF64)) {
      return Bad(fmt::format("{} has unknown value type {}", what, id));
    }
    *type = static_cast<GgufType>(id);
    return OkStatus();
  }

  Status ReadPreamble(uint64_t* tensor_count, uint64_t* key_count) {
    std::array<char, 4> magic;
    TERN_RETURN_IF_ERROR(Read(&magic, "the magic number"));
    if (std::memcmp(magic.data(), "GGUF", 4) != 0) return Bad("not a GGUF file");
    TERN_RETURN_IF_ERROR(Read(&gguf_.version_, "the version"));
    if (gguf_.version_ != 2 && gguf_.version_ != 3) {
      if (gguf_.version_ != 0 && (gguf_.version_ & 0xFFFF) == 0) {
        return Unimplemented(fmt::format("{}: big-endian GGUF is not supported", gguf_.path_));
      }
      return Unimplemented(fmt::format("{}: GGUF version {} is not supported (2 and 3 are)",
                                       gguf_.path_, gguf_.version_));
    }
    TERN_RETURN_IF_ERROR(Read(tensor_count, "the tensor count"));
    return Read(key_count, "the metadata count");
  }

  Status ReadKey(uint64_t index) {
    std::string_view key;
    GgufType type = GgufType::kU8;
    TERN_RETURN_IF_ERROR(ReadName(fmt::format("metadata key {}", index), &key));
    TERN_RETURN_IF_ERROR(ReadType(key, &type));
    GgufValue value;
    if (type == GgufType::kArray) {
      GgufArray array;
      TERN_RETURN_IF_ERROR(ReadArray(key, 1, &array));
      value = array;
    } else if (type == GgufType::kString) {
      std::string_view text;
      TERN_RETURN_IF_ERROR(ReadString(key, &text));
      value = text;
    } else {
      std::span<const std::byte> bytes;
      TERN_RETURN_IF_ERROR(ReadBytes(ScalarBytes(type), key, &bytes));
      value = DecodeScalar(type, bytes.data());
    }
    if (!gguf_.metadata_.emplace(key, value).second) {
      return Bad(fmt::format("metadata key '{}' occurs twice", key));
    }
    return OkStatus();
  }

  Status ReadArray(std::string_view key, int depth, GgufArray* array) {
    if (depth > kMaxArrayDepth) {
      return Bad(fmt::format("{} nests arrays deeper than {}", key, kMaxArrayDepth));
    }
    TERN_RETURN_IF_ERROR(ReadType(key, &array->element));
    TERN_RETURN_IF_ERROR(Read(&array->count, key));
    const uint64_t begin = position_;
    if (const uint64_t size = ScalarBytes(array->element); size > 0) {
      if (array->count > left() / size) {
        return Bad(fmt::format("{} claims {} elements, {} bytes are left in the file", key,
                               array->count, left()));
      }
      position_ += array->count * size;
    } else {
      // Each round consumes bytes or fails, so a hostile count ends with the file.
      for (uint64_t i = 0; i < array->count; ++i) {
        if (array->element == GgufType::kString) {
          std::string_view ignored;
          TERN_RETURN_IF_ERROR(ReadString(key, &ignored));
        } else {
          GgufArray ignored;
          TERN_RETURN_IF_ERROR(ReadArray(key, depth + 1, &ignored));
        }
      }
    }
    array->payload = file_.subspan(begin, position_ - begin);
    return OkStatus();
  }

  Status ReadTensorInfo(uint64_t index) {
    std::string_view name;
    TERN_RETURN_IF_ERROR(ReadName(fmt::format("the name of tensor {}", index), &name));
    const std::string what = fmt::format("tensor '{}'", name);
    if (!names_.insert(name).second) return Bad(what + " occurs twice");

    uint32_t rank = 0, type_id = 0;
    uint64_t offset = 0;
    TERN_RETURN_IF_ERROR(Read(&rank, what));
    if (rank == 0 || rank > kMaxDims) {
      return Bad(fmt::format("{} has {} dimensions, 1 to {} are allowed", what, rank, kMaxDims));
    }
    std::array<int64_t, kMaxDims> dims{};  // GGUF's order: the first is contiguous
    for (uint32_t d = 0; d < rank; ++d) {
      TERN_RETURN_IF_ERROR(Read(&dims[d], what));
      if (dims[d] <= 0) return Bad(fmt::format("{}: dimension {} is {}", what, d, dims[d]));
    }
    TERN_RETURN_IF_ERROR(Read(&type_id, what));
    TERN_RETURN_IF_ERROR(Read(&offset, what));

    const auto type = std::find_if(kTensorTypes.begin(), kTensorTypes.end(),
                                   [&](const TensorType& t) { return t.id == type_id; });
    if (type == kTensorTypes.end()) return Bad(fmt::format("{}: unknown type {}", what, type_id));
    if (!type->dtype) {
      return Unimplemented(
          fmt::format("{}: {} has type {}, which is not supported", gguf_.path_, what, type->name));
    }
    if (dims[0] % InfoOf(*type->dtype).block_elements != 0) {
      return Bad(
          fmt::format("{}: rows of {} are cut inside a {} block", what, dims[0], type->name));
    }
    std::reverse(dims.begin(), dims.begin() + rank);
    const Shape shape(std::span<const int64_t>(dims.data(), rank));
    const std::optional<int64_t> elements = shape.elements();
    const std::optional<uint64_t> bytes =
        elements ? StorageBytes(*type->dtype, static_cast<uint64_t>(*elements)) : std::nullopt;
    if (!bytes) return Bad(fmt::format("{}: shape {} overflows", what, shape.ToString()));
    placements_.push_back({gguf_.tensors_.size(), offset, *bytes});
    gguf_.tensors_.push_back({std::string(name), TensorView{*type->dtype, shape, {}}});
    return OkStatus();
  }

  // Resolves the offsets, which count from the first aligned byte after the tensor table.
  Status PlaceTensors() {
    TERN_ASSIGN_OR_RETURN(const auto declared, gguf_.Int("general.alignment"));
    const int64_t alignment = declared.value_or(kDefaultAlignment);
    if (alignment <= 0 || static_cast<uint64_t>(alignment) > kMaxAlignment ||
        !std::has_single_bit(static_cast<uint64_t>(alignment))) {
      return Bad(fmt::format("general.alignment {} is no power of two up to {}", alignment,
                             kMaxAlignment));
    }
    const auto mask = static_cast<uint64_t>(alignment) - 1;
    const uint64_t data_begin = std::min<uint64_t>((position_ + mask) & ~mask, file_.size());
    const std::span<const std::byte> data = file_.subspan(data_begin);
    for (const Placement& p : placements_) {
      GgufTensor& tensor = gguf_.tensors_[p.tensor];
      if ((p.offset & mask) != 0) {
        return Bad(fmt::format("tensor '{}': offset {} is not aligned to {}", tensor.name, p.offset,
                               alignment));
      }
      if (p.offset > data.size() || p.bytes > data.size() - p.offset) {
        return Bad(
            fmt::format("tensor '{}': its {} bytes at offset {} lie outside the file's {} "
                        "data bytes",
                        tensor.name, p.bytes, p.offset, data.size()));
      }
      tensor.view.bytes = data.subspan(p.offset, p.bytes);
    }
    std::sort(placements_.begin(), placements_.end(),
              [](const Placement& a, const Placement& b) { return a.offset < b.offset; });
    for (size_t i = 1; i < placements_.size(); ++i) {
      const Placement& before = placements_[i - 1];
      if (placements_[i].offset < before.offset + before.bytes) {
        return Bad(fmt::format("tensors '{}' and '{}' overlap", gguf_.tensors_[before.tensor].name,
                               gguf_.tensors_[placements_[i].tensor].name));
      }
    }
    return OkStatus();
  }

  const std::span<const std::byte> file_;
  uint64_t position_ = 0;
  Gguf gguf_;
  std::unordered_set<std::string_view> names_;
  std::vector<Placement> placements_;
};

Result<Gguf> Gguf::Parse(std::span<const std::byte> file, const std::string& path) {
  return GgufParser(file, path).Run();
}

const GgufValue* Gguf::Find(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

Status Gguf::WrongType(std::string_view key, const char* type) const {
  return InvalidArgument(fmt::format("{}: {} must be {}", path_, key, type));
}

Result<std::optional<int64_t>> Gguf::Int(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<int64_t>();
  if (const auto* i = std::get_if<int64_t>(value)) return std::optional(*i);
  return WrongType(key, "an integer");
}

Result<std::optional<double>> Gguf::Float(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<double>();
  if (const auto* d = std::get_if<double>(value)) return std::optional(*d);
  if (const auto* i = std::get_if<int64_t>(value)) return std::optional(static_cast<double>(*i));
  return WrongType(key, "a number");
}

Result<std::optional<bool>> Gguf::Bool(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<bool>();
  if (const auto* b = std::get_if<bool>(value)) return std::optional(*b);
  return WrongType(key, "true or false");
}

Result<std::optional<std::string_view>> Gguf::String(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<std::string_view>();
  if (const auto* s = std::get_if<std::string_view>(value)) return std::optional(*s);
  return WrongType(key, "a string");
}

Result<std::optional<std::vector<std::string_view>>> Gguf::Strings(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<std::vector<std::string_view>>();
  const auto* array = std::get_if<GgufArray>(value);
  if (array == nullptr || array->element != GgufType::kString) {
    return WrongType(key, "an array of strings");
  }
  std::vector<std::string_view> strings;
  strings.reserve(array->count);  // checked at parsing: every string has its 8 bytes in the file
  const std::byte* at = array->payload.data();
  for (uint64_t i = 0; i < array->count; ++i) {
    const auto size = LoadAs<uint64_t>(at);
    strings.emplace_back(reinterpret_cast<const char*>(at + sizeof(size)), size);
    at += sizeof(size) + size;
  }
  return std::optional(std::move(strings));
}

Result<std::optional<std::vector<int64_t>>> Gguf::Ints(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<std::vector<int64_t>>();
  const auto* array = std::get_if<GgufArray>(value);
  const uint64_t size = array == nullptr ? 0 : ScalarBytes(array->element);
  if (size == 0) return WrongType(key, "an array of integers");
  std::vector<int64_t> ints;
  ints.reserve(array->count);
  for (uint64_t i = 0; i < array->count; ++i) {
    const GgufValue element = DecodeScalar(array->element, array->payload.data() + i * size);
    const auto* integer = std::get_if<int64_t>(&element);
    if (integer == nullptr) return WrongType(key, "an array of integers");
    ints.push_back(*integer);
  }
  return std::optional(std::move(ints));
}

}  // namespace tern
