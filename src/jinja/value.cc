#include "jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace tern::jinja {
namespace {

constexpr size_t kLinearSearch = 8;  // dicts up to this size have no hash index

size_t HashNumber(double d) { return std::hash<double>()(d == 0 ? 0 : d); }

// Equal keys have equal hashes: integers go through double as 1 == 1.0.
size_t HashKey(const Value& key) {
  switch (key.kind()) {
    case Value::Kind::kUndefined:
      return 1;
    case Value::Kind::kNone:
      return 2;
    case Value::Kind::kBool:
    case Value::Kind::kInt:
    case Value::Kind::kFloat:
      return HashNumber(key.number());
    case Value::Kind::kString:
      return std::hash<std::string_view>()(key.str());
    case Value::Kind::kList: {
      size_t hash = key.items().size();
      for (const Value& item : key.items()) hash = hash * 31 + HashKey(item);
      return hash;
    }
    case Value::Kind::kDict:
      return 3;
    case Value::Kind::kObject:
      return std::hash<const void*>()(&key.object());
  }
  return 0;
}

bool KeysEqual(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.kind() != b.kind()) return false;
  if (a.is_string()) return a.str() == b.str();
  if (a.is_sequence()) {
    return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                      KeysEqual);
  }
  return a.is_none() || a.is_undefined() || a.SameAs(b);
}

int DepthOf(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return depth + 1;
}

}  // namespace

Value Value::Undef(std::string message) {
  return Value(Data(std::make_shared<const Undefined>(Undefined{std::move(message)})));
}

Value Value::Str(std::string text, bool safe) {
  return Value(Data(std::make_shared<const String>(String{std::move(text), safe})));
}

Value Value::MakeList(std::vector<Value> items) {
  const int depth = DepthOf(items);
  return Of(std::make_shared<const List>(List{std::move(items), false, false, depth}));
}

Value Value::MakeTuple(std::vector<Value> items) {
  const int depth = DepthOf(items);
  return Of(std::make_shared<const List>(List{std::move(items), true, false, depth}));
}

Value Value::MakeDict(Dict dict) {
  return Value(Data(std::make_shared<const Dict>(std::move(dict))));
}

bool Value::is_list() const { return is_sequence() && !list().tuple; }
bool Value::is_tuple() const { return is_sequence() && list().tuple; }
const std::vector<Value>& Value::items() const { return list().items; }

bool Value::SameAs(const Value& other) const {
  if (kind() != other.kind()) return false;
  switch (kind()) {
    case Kind::kUndefined:
      return std::get<0>(data_) == std::get<0>(other.data_);
    case Kind::kNone:
      return true;
    case Kind::kBool:
      return boolean() == other.boolean();
    case Kind::kInt:
      return integer() == other.integer();
    case Kind::kFloat:
      return number() == other.number();
    case Kind::kString:
      return str() == other.str() && safe() == other.safe();
    case Kind::kList:
      return std::get<6>(data_) == std::get<6>(other.data_);
    case Kind::kDict:
      return std::get<7>(data_) == std::get<7>(other.data_);
    case Kind::kObject:
      return std::get<8>(data_) == std::get<8>(other.data_);
  }
  return false;
}

int Value::depth() const {
  if (is_sequence()) return list().depth;
  if (is_dict()) return dict().depth();
  if (is_object()) return object().depth();
  return 0;
}

int64_t Value::UnsharedBytes() const {
  if (is_string() && std::get<5>(data_).use_count() == 1) {
    return static_cast<int64_t>(sizeof(String) + str().size());
  }
  if (is_undefined() && std::get<0>(data_) != nullptr) {
    return static_cast<int64_t>(sizeof(Undefined) + std::get<0>(data_)->message.size());
  }
  if (is_sequence() && std::get<6>(data_).use_count() == 1) {
    return static_cast<int64_t>(sizeof(List) + items().size() * sizeof(Value));
  }
  if (is_dict() && std::get<7>(data_).use_count() == 1) {
    return static_cast<int64_t>(sizeof(Dict)) + dict().Bytes();
  }
  if (is_object() && std::get<8>(data_).use_count() == 1) return 256;
  return 0;
}

std::string_view Value::type_name() const {
  switch (kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return safe() ? "Markup" : "str";
    case Kind::kList:
      return list().tuple ? "tuple" : "list";
    case Kind::kDict:
      return "dict";
    case Kind::kObject:
      return object().type_name();
  }
  return "?";
}

Status Dict::CheckKey(const Value& key) {
  if (key.is_list() || key.is_dict()) {
    return InvalidArgument(fmt::format("unhashable type: '{}'", key.type_name()));
  }
  if (key.is_tuple()) {
    for (const Value& item : key.items()) {
      if (item.is_sequence()) return InvalidArgument("dict keys may not be tuples of tuples");
      TERN_RETURN_IF_ERROR(CheckKey(item));
    }
  }
  return OkStatus();
}

std::optional<size_t> Dict::IndexOf(const Value& key, size_t hash) const {
  if (entries_.size() <= kLinearSearch) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (KeysEqual(entries_[i].key, key)) return i;
    }
    return std::nullopt;
  }
  for (auto [it, end] = index_.equal_range(hash); it != end; ++it) {
    if (KeysEqual(entries_[it->second].key, key)) return it->second;
  }
  return std::nullopt;
}

void Dict::Set(Value key, Value value) {
  depth_ = std::max({depth_, key.depth() + 1, value.depth() + 1});
  const size_t hash = HashKey(key);
  if (const auto i = IndexOf(key, hash)) {
    entries_[*i].value = std::move(value);
    return;
  }
  entries_.push_back({std::move(key), std::move(value)});
  if (entries_.size() == kLinearSearch + 1) {
    for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(HashKey(entries_[i].key), i);
  } else if (entries_.size() > kLinearSearch) {
    index_.emplace(hash, entries_.size() - 1);
  }
}

const Value* Dict::Find(const Value& key) const {
  const auto i = IndexOf(key, HashKey(key));
  return i ? &entries_[*i].value : nullptr;
}

const Value* Dict::Find(std::string_view key) const {
  if (entries_.size() > kLinearSearch) return Find(Value::Str(std::string(key)));
  for (const Entry& entry : entries_) {
    if (entry.key.is_string() && entry.key.str() == key) return &entry.value;
  }
  return nullptr;
}

void Dict::Clear() {
  index_.clear();
  entries_.clear();
}

Status Object::AppendRepr(Budget&, int, std::string* out) const {
  *out += fmt::format("<{} object>", type_name());
  return OkStatus();
}

std::optional<Value> Object::Attribute(std::string_view) { return std::nullopt; }
std::optional<Value> Object::Item(int64_t) { return std::nullopt; }

std::optional<Value> Object::Slice(int64_t, int64_t, int64_t) { return std::nullopt; }

Result<Value> Object::Call(Interpreter&, Args) {
  return InvalidArgument(fmt::format("'{}' object is not callable", type_name()));
}

}  // namespace tern::jinja
