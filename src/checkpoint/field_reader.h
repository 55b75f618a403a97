// FieldReader: typed reads of one JSON object's fields that keep the first error. Internal to the
// config readers of this area. Thread: a local variable.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "base/utf8.h"

namespace tern::config {

inline constexpr int64_t kMaxSize = (int64_t{1} << 31) - 1;
inline constexpr size_t kMaxEntryBytes = 4096;  // of an entry of a list of strings

inline Status Bad(const std::string& where, const std::string& what) {
  return InvalidArgument(fmt::format("{}: {}", where, what));
}

// What a file says and an error may repeat: short, valid UTF-8, no control characters.
inline bool IsPlainText(std::string_view text, size_t max_bytes = 256) {
  return text.size() <= max_bytes && IsValidUtf8(text) &&
         std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
}

inline bool Has(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && !found->is_null();
}

// Reads fields of one object. The first error stays and is returned by status(): a list of reads
// stays a list of lines.
class FieldReader {
 public:
  FieldReader(const Json& json, const std::string& where) : json_(json), where_(where) {}

  void Size(const char* key, int64_t* field) {
    if (!Has(json_, key)) return Fail(Bad(where_, fmt::format("{} is missing", key)));
    OptionalSize(key, field);
  }
  void OptionalSize(const char* key, int64_t* field) {
    if (!Take(JsonInt(json_, key, *field, where_), field) || !Has(json_, key)) return;
    if (*field < 1 || *field > kMaxSize) {
      Fail(Bad(where_, fmt::format("{} is {}, not in [1, {}]", key, *field, kMaxSize)));
    }
  }
  void OptionalSize(const char* key, std::optional<int64_t>* field) {
    if (!Has(json_, key)) return;
    OptionalSize(key, &field->emplace(0));
  }
  void Double(const char* key, double* field) {
    Take(JsonDouble(json_, key, *field, where_), field);
  }
  void Double(const char* key, std::optional<double>* field) {
    if (Has(json_, key)) Double(key, &field->emplace(0));
  }
  void PositiveDouble(const char* key, double* field) {
    Double(key, field);
    if (status_.ok() && !(std::isfinite(*field) && *field > 0)) {
      Fail(Bad(where_, fmt::format("{} is {}, not a positive number", key, *field)));
    }
  }
  void Int(const char* key, std::optional<int64_t>* field) {
    if (Has(json_, key)) Take(JsonInt(json_, key, 0, where_), &field->emplace(0));
  }
  void Bool(const char* key, bool* field) { Take(JsonBool(json_, key, *field, where_), field); }
  void Bool(const char* key, std::optional<bool>* field) {
    if (Has(json_, key)) Bool(key, &field->emplace(false));
  }
  // Strings of a list; absent: left alone.
  void Strings(const char* key, std::vector<std::string>* field) {
    if (!Has(json_, key)) return;
    const Json& list = json_[key];
    field->clear();
    bool good = list.is_array();
    for (size_t i = 0; good && i < list.size(); ++i) {
      good = list[i].is_string();
      if (good) field->push_back(list[i].get<std::string>());
      if (good && !IsPlainText(field->back(), kMaxEntryBytes)) {
        return Fail(Bad(where_, fmt::format("{}[{}] is no plain text of at most {} bytes", key, i,
                                            kMaxEntryBytes)));
      }
    }
    if (!good) Fail(Bad(where_, fmt::format("{} must be a list of strings", key)));
  }
  void String(const char* key, std::string* field) {
    if (!Take(JsonString(json_, key, *field, where_), field) || IsPlainText(*field)) return;
    Fail(Bad(where_, fmt::format("{} is no plain text of at most 256 bytes", key)));
  }
  // One id or a list of ids.
  void TokenIds(const char* key, std::vector<int32_t>* ids) {
    if (!Has(json_, key)) return;
    const Json& value = json_[key];
    const Json list = value.is_array() ? value : Json::array({value});
    for (const Json& id : list) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > kMaxSize) {
        return Fail(Bad(where_, fmt::format("{} must be a token id or a list of them", key)));
      }
      ids->push_back(id.get<int32_t>());
    }
  }

  const Status& status() const { return status_; }

 private:
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  template <typename T>
  bool Take(Result<T> result, T* field) {
    if (result.ok()) {
      *field = std::move(result).value();
    } else {
      Fail(result.status());
    }
    return result.ok();
  }

  const Json& json_;
  const std::string where_;
  Status status_;
};

}  // namespace tern::config
