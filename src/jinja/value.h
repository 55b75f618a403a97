// Value: a Python value as a Jinja template sees it. Copies share strings, lists and dicts, which
// never change once made; only namespaces, generators and the like (Object) have state.
// Thread: values are used by the one thread that renders. Constants of a compiled template are
// shared between renders and only read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "jinja/budget.h"

namespace tern::jinja {

class Dict;
class Interpreter;
class Object;
struct List;

// `safe` is what Python calls Markup: adding a plain string to it HTML-escapes the plain one.
struct String {
  std::string text;  // valid UTF-8
  bool safe = false;
};

// A name or attribute that is not there. Prints as nothing; most other uses fail with `message`.
struct Undefined {
  std::string message;
};

class Value {
 public:
  // The order is that of the variant's alternatives.
  enum class Kind { kUndefined, kNone, kBool, kInt, kFloat, kString, kList, kDict, kObject };

  Value() : data_(nullptr) {}  // none
  static Value None() { return {}; }
  static Value Undef(std::string message);
  static Value Bool(bool b) { return Value(Data(b)); }
  static Value Int(int64_t i) { return Value(Data(i)); }
  static Value Float(double d) { return Value(Data(d)); }
  static Value Str(std::string text, bool safe = false);
  static Value MakeList(std::vector<Value> items);
  static Value MakeTuple(std::vector<Value> items);
  static Value MakeDict(Dict dict);
  static Value Of(std::shared_ptr<Object> object) { return Value(Data(std::move(object))); }
  static Value Of(std::shared_ptr<const List> list) { return Value(Data(std::move(list))); }

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is_undefined() const { return kind() == Kind::kUndefined; }
  bool is_none() const { return kind() == Kind::kNone; }
  bool is_bool() const { return kind() == Kind::kBool; }
  bool is_int() const { return kind() == Kind::kInt; }
  bool is_float() const { return kind() == Kind::kFloat; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_list() const;  // a list, not a tuple
  bool is_tuple() const;
  bool is_sequence() const { return kind() == Kind::kList; }  // a list or a tuple
  bool is_dict() const { return kind() == Kind::kDict; }
  bool is_object() const { return kind() == Kind::kObject; }
  // bool is a kind of int in Python.
  bool is_integral() const { return is_int() || is_bool(); }
  bool is_number() const { return is_integral() || is_float(); }

  // REQUIRES: the matching kind.
  const Undefined& undefined() const { return *std::get<0>(data_); }
  bool boolean() const { return std::get<bool>(data_); }
  int64_t integer() const { return is_bool() ? boolean() : std::get<int64_t>(data_); }
  double number() const { return is_float() ? std::get<double>(data_) : double(integer()); }
  const std::string& str() const { return std::get<5>(data_)->text; }
  bool safe() const { return std::get<5>(data_)->safe; }
  const List& list() const { return *std::get<6>(data_); }
  const std::vector<Value>& items() const;
  const Dict& dict() const { return *std::get<7>(data_); }
  Object& object() const { return *std::get<8>(data_); }
  const std::shared_ptr<Object>& object_ptr() const { return std::get<8>(data_); }
  template <typename T>
  T* as() const {  // the object as a T, or null
    return is_object() ? dynamic_cast<T*>(&object()) : nullptr;
  }

  // The same heap object, or equal scalars.
  bool SameAs(const Value& other) const;
  // Nesting of containers: 0 for scalars, 1 for [1], 2 for [[1]].
  int depth() const;
  // Heap bytes of this value alone if nothing else shares it, else 0.
  int64_t UnsharedBytes() const;
  // As Python spells it: "str", "NoneType", "dict"...
  std::string_view type_name() const;

 private:
  using Data = std::variant<std::shared_ptr<const Undefined>, std::nullptr_t, bool, int64_t, double,
                            std::shared_ptr<const String>, std::shared_ptr<const List>,
                            std::shared_ptr<const Dict>, std::shared_ptr<Object>>;
  explicit Value(Data data) : data_(std::move(data)) {}
  Data data_;
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  bool group = false;  // a (grouper, list) pair of the groupby filter, with those attributes
  int depth = 1;
};

// An insertion-ordered dict. Keys are scalars or tuples of scalars; 1, 1.0 and true are one key.
class Dict {
 public:
  struct Entry {
    Value key, value;
  };

  // Errors: "unhashable type: ..." for keys that Set and Find may not get.
  static Status CheckKey(const Value& key);

  // Replaces the value of an equal key, which keeps its place. REQUIRES: CheckKey(key).ok()
  void Set(Value key, Value value);
  // Null when absent. REQUIRES: CheckKey(key).ok()
  const Value* Find(const Value& key) const;
  const Value* Find(std::string_view key) const;
  void Clear();

  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  int depth() const { return depth_; }
  // What its entries take, and one more whose key is a string of its own.
  int64_t Bytes() const { return static_cast<int64_t>(size() * kBytesOfEntry); }
  static int64_t BytesOfNamed(std::string_view key) {
    return static_cast<int64_t>(kBytesOfEntry + sizeof(String) + key.size());
  }

 private:
  // With room to grow and its place in the index.
  static constexpr size_t kBytesOfEntry = 2 * sizeof(Entry) + 48;
  std::optional<size_t> IndexOf(const Value& key, size_t hash) const;

  std::vector<Entry> entries_;
  std::unordered_multimap<size_t, size_t> index_;  // hash to entry; empty while the dict is small
  int depth_ = 1;
};

// Yields the items of an iterable one by one.
class Cursor {
 public:
  virtual ~Cursor() = default;
  // False at the end.
  virtual Result<bool> Next(Value* out) = 0;
};

// Arguments of a call as written in the template.
struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

// Values with behaviour of their own: namespaces, generators, macros, methods, ranges, loops.
class Object : public std::enable_shared_from_this<Object> {
 public:
  virtual ~Object() = default;
  virtual std::string_view type_name() const = 0;
  virtual Status AppendRepr(Budget& budget, int depth, std::string* out) const;
  // Absent: has no len().
  virtual std::optional<int64_t> Length() { return std::nullopt; }
  // Null: not iterable.
  virtual std::unique_ptr<Cursor> Iterate() { return nullptr; }
  // Absent: no such attribute.
  virtual std::optional<Value> Attribute(std::string_view name);
  // object[index]; absent: no such item.
  virtual std::optional<Value> Item(int64_t index);
  // Items from, from + step... up to `to`; absent: cannot be sliced. Bounds as range() takes them.
  virtual std::optional<Value> Slice(int64_t from, int64_t to, int64_t step);
  virtual bool callable() const { return false; }
  virtual Result<Value> Call(Interpreter& interpreter, Args args);
  virtual int depth() const { return 1; }
};

}  // namespace tern::jinja
