// Filters on iterables. Like jinja2's, map, select, unique, batch and slice are lazy: they give
// generators, which can be read once and have no length.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>

#include "jinja/builtins.h"
#include "jinja/objects.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace tern::jinja {
namespace {

// "a.b.0" as the keys that the `attribute` argument stands for.
std::vector<Value> AttributePath(const Value& attribute) {
  if (attribute.is_none()) return {};
  if (!attribute.is_string()) return {attribute};
  std::vector<Value> path;
  std::string_view text = attribute.str();
  while (true) {
    const size_t dot = std::min(text.find('.'), text.size());
    const std::string_view part = text.substr(0, dot);
    const bool index =
        !part.empty() && part.size() < 18 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    path.push_back(index ? Value::Int(std::stoll(std::string(part)))
                         : Value::Str(std::string(part)));
    if (dot == text.size()) return path;
    text.remove_prefix(dot + 1);
  }
}

// Reads an attribute path of an item; `fallback` stands in for what is undefined.
Result<Value> GetPath(Interpreter& in, Value item, const std::vector<Value>& path,
                      const std::optional<Value>& fallback = std::nullopt) {
  for (const Value& key : path) {
    TERN_ASSIGN_OR_RETURN(item, in.GetItem(item, key));
    if (fallback && item.is_undefined()) item = *fallback;
  }
  return item;
}

Value IgnoreCase(const Value& v) { return v.is_string() ? Value::Str(Lower(v.str())) : v; }

// The key that sort, unique, min, max and groupby compare.
struct KeyGetter {
  std::vector<std::vector<Value>> paths;  // one, or several for sort(attribute="a,b")
  bool case_sensitive = false;
  std::optional<Value> fallback;

  Result<Value> operator()(Interpreter& in, const Value& item) const {
    std::vector<Value> keys;
    for (const auto& path : paths) {
      TERN_ASSIGN_OR_RETURN(Value key, GetPath(in, item, path, fallback));
      keys.push_back(case_sensitive ? std::move(key) : IgnoreCase(key));
    }
    return keys.size() == 1 ? std::move(keys[0]) : Value::MakeList(std::move(keys));
  }
};

Result<std::vector<size_t>> SortedOrder(Interpreter& in, const std::vector<Value>& keys,
                                        bool reverse) {
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  // Reverse keeps equal items in their order, as Python's sorted.
  TERN_RETURN_IF_ERROR(StableSort(&order, [&](size_t a, size_t b) {
    return reverse ? Less(in.budget(), keys[b], keys[a]) : Less(in.budget(), keys[a], keys[b]);
  }));
  return order;
}

Result<std::vector<Value>> KeysOf(Interpreter& in, const std::vector<Value>& items,
                                  const KeyGetter& getter) {
  std::vector<Value> keys;
  keys.reserve(items.size());
  for (const Value& item : items) {
    TERN_ASSIGN_OR_RETURN(Value key, getter(in, item));
    keys.push_back(std::move(key));
  }
  return keys;
}

Result<Value> Sort(Interpreter& in, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const std::vector<Value> items, ToItems(in.budget(), self));
  KeyGetter getter;
  getter.case_sensitive = args.Truth(1, false);
  const Value attribute = args.Or(2, Value::None());
  if (attribute.is_string()) {
    std::string_view text = attribute.str();
    while (true) {
      const size_t comma = std::min(text.find(','), text.size());
      getter.paths.push_back(AttributePath(Value::Str(std::string(text.substr(0, comma)))));
      if (comma == text.size()) break;
      text.remove_prefix(comma + 1);
    }
  } else {
    getter.paths.push_back(AttributePath(attribute));
  }
  TERN_ASSIGN_OR_RETURN(const std::vector<Value> keys, KeysOf(in, items, getter));
  TERN_ASSIGN_OR_RETURN(const std::vector<size_t> order,
                        SortedOrder(in, keys, args.Truth(0, false)));
  std::vector<Value> sorted;
  for (const size_t i : order) sorted.push_back(items[i]);
  return Value::MakeList(std::move(sorted));
}

Result<Value> DictSort(Interpreter& in, const Value& self, const BoundArgs& args) {
  const Value by = args.Or(1, Value::Str("key"));
  if (!by.is_string() || (by.str() != "key" && by.str() != "value")) {
    return InvalidArgument("you can only sort by either \"key\" or \"value\"");
  }
  if (self.is_undefined()) return UndefinedError(self);
  if (!self.is_dict()) {
    return TypeError(fmt::format("'{}' object has no attribute 'items'", self.type_name()));
  }
  const bool case_sensitive = args.Truth(0, false);
  std::vector<Value> keys, pairs;
  for (const auto& [key, value] : self.dict().entries()) {
    const Value& sort_key = by.str() == "key" ? key : value;
    keys.push_back(case_sensitive ? sort_key : IgnoreCase(sort_key));
    pairs.push_back(Value::MakeTuple({key, value}));
  }
  TERN_ASSIGN_OR_RETURN(const std::vector<size_t> order,
                        SortedOrder(in, keys, args.Truth(2, false)));
  std::vector<Value> sorted;
  for (const size_t i : order) sorted.push_back(pairs[i]);
  return Value::MakeList(std::move(sorted));
}

Result<Value> GroupBy(Interpreter& in, const Value& self, const BoundArgs& args) {
  KeyGetter getter{{AttributePath(*args.Get(0))}, args.Truth(2, false), std::nullopt};
  if (args.Get(1) != nullptr && !args.Get(1)->is_none()) getter.fallback = *args.Get(1);
  TERN_ASSIGN_OR_RETURN(const std::vector<Value> items, ToItems(in.budget(), self));
  TERN_ASSIGN_OR_RETURN(const std::vector<Value> keys, KeysOf(in, items, getter));
  TERN_ASSIGN_OR_RETURN(const std::vector<size_t> order, SortedOrder(in, keys, false));
  KeyGetter exact = getter;
  exact.case_sensitive = true;
  std::vector<Value> groups;
  for (size_t begin = 0; begin < order.size();) {
    std::vector<Value> members;
    size_t end = begin;
    for (; end < order.size(); ++end) {
      TERN_ASSIGN_OR_RETURN(const bool same,
                            Equal(in.budget(), keys[order[begin]], keys[order[end]]));
      if (!same) break;
      members.push_back(items[order[end]]);
    }
    // The key as the first member spells it.
    TERN_ASSIGN_OR_RETURN(Value grouper, exact(in, members[0]));
    const Value list = Value::MakeList(std::move(members));
    const int depth = std::max(grouper.depth(), list.depth()) + 1;
    groups.push_back(Value::Of(
        std::make_shared<const List>(List{{std::move(grouper), list}, true, true, depth})));
    begin = end;
  }
  return Value::MakeList(std::move(groups));
}

// The smallest (or largest) item; the first of equals.
template <bool kMax>
Result<Value> Extreme(Interpreter& in, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const std::vector<Value> items, ToItems(in.budget(), self));
  if (items.empty()) return Value::Undef("no aggregated item, sequence was empty");
  const KeyGetter getter{{AttributePath(args.Or(1, Value::None()))}, args.Truth(0, false), {}};
  TERN_ASSIGN_OR_RETURN(const std::vector<Value> keys, KeysOf(in, items, getter));
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    TERN_ASSIGN_OR_RETURN(const bool better, kMax ? Less(in.budget(), keys[best], keys[i])
                                                  : Less(in.budget(), keys[i], keys[best]));
    if (better) best = i;
  }
  return items[best];
}

using Predicate = std::function<Result<bool>(const Value&)>;

Value Filtered(Interpreter& in, const Value& self, Predicate keep) {
  struct State {
    std::unique_ptr<Cursor> cursor;
  };
  const auto state = std::make_shared<State>();
  return MakeGenerator(self,
                       [&in, self, keep = std::move(keep), state](Value* out) -> Result<bool> {
                         if (!state->cursor) {
                           if (!Truth(self)) return false;
                           TERN_ASSIGN_OR_RETURN(state->cursor, Iterate(in.budget(), self));
                         }
                         while (true) {
                           TERN_ASSIGN_OR_RETURN(const bool more, state->cursor->Next(out));
                           if (!more) return false;
                           TERN_ASSIGN_OR_RETURN(const bool kept, keep(*out));
                           if (kept) return true;
                         }
                       });
}

// select, reject (kAttribute false), selectattr and rejectattr.
template <bool kAttribute, bool kKeep>
Result<Value> Select(Interpreter& in, const Value& self, const BoundArgs& args) {
  Args rest = args.rest();
  const size_t name_at = kAttribute ? 1 : 0;
  std::vector<Value> path;
  // jinja2 complains about missing arguments only when the result is read.
  const bool no_attribute = kAttribute && rest.positional.empty();
  if (kAttribute && !no_attribute) path = AttributePath(rest.positional[0]);
  std::optional<Value> name;
  if (rest.positional.size() > name_at) name = rest.positional[name_at];
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                      name_at + 1, rest.positional.size())));
  return Filtered(in, self,
                  [&in, path, name, rest, no_attribute](const Value& item) -> Result<bool> {
                    if (no_attribute)
                      return InvalidArgument("missing parameter for attribute name");
                    TERN_ASSIGN_OR_RETURN(const Value v, GetPath(in, item, path));
                    if (!name) return Truth(v) == kKeep;
                    if (!name->is_string())
                      return InvalidArgument("the name of a test must be a string");
                    TERN_ASSIGN_OR_RETURN(const bool holds, in.ApplyTest(name->str(), v, rest));
                    return holds == kKeep;
                  });
}

Result<Value> Map(Interpreter& in, const Value& self, const BoundArgs& args) {
  Args rest = args.rest();
  std::function<Result<Value>(const Value&)> map;
  const auto keyword = [&rest](std::string_view name) -> std::optional<Value> {
    const auto it = std::find_if(rest.keyword.begin(), rest.keyword.end(),
                                 [&](const auto& k) { return k.first == name; });
    if (it == rest.keyword.end()) return std::nullopt;
    Value v = std::move(it->second);
    rest.keyword.erase(it);
    return v;
  };
  std::optional<Value> attribute;
  if (rest.positional.empty()) attribute = keyword("attribute");
  if (attribute) {
    std::optional<Value> fallback = keyword("default");
    if (fallback && fallback->is_none()) fallback.reset();
    if (!rest.keyword.empty()) {
      const std::string message =
          fmt::format("unexpected keyword argument '{}'", rest.keyword[0].first);
      map = [message](const Value&) -> Result<Value> { return InvalidArgument(message); };
    } else {
      map = [&in, path = AttributePath(*attribute), fallback](const Value& item) {
        return GetPath(in, item, path, fallback);
      };
    }
  } else if (rest.positional.empty() || !rest.positional[0].is_string()) {
    map = [](const Value&) -> Result<Value> {
      return InvalidArgument("map requires a filter argument");
    };
  } else {
    const std::string name = rest.positional[0].str();
    rest.positional.erase(rest.positional.begin());
    map = [&in, name, rest](const Value& item) { return in.ApplyFilter(name, item, rest); };
  }
  Value all = Filtered(in, self, [](const Value&) -> Result<bool> { return true; });
  const std::shared_ptr<Cursor> cursor = all.object().Iterate();
  return MakeGenerator(self, [cursor, map](Value* out) -> Result<bool> {
    Value item;
    TERN_ASSIGN_OR_RETURN(const bool more, cursor->Next(&item));
    if (!more) return false;
    TERN_ASSIGN_OR_RETURN(*out, map(item));
    return true;
  });
}

// The items of a value. What can't be iterated fails when it is read, as in a Python generator.
class LateCursor final : public Cursor {
 public:
  LateCursor(Budget& budget, Value source) : budget_(budget), source_(std::move(source)) {}
  Result<bool> Next(Value* out) override {
    if (!cursor_) {
      TERN_ASSIGN_OR_RETURN(cursor_, Iterate(budget_, source_));
    }
    return cursor_->Next(out);
  }

 private:
  Budget& budget_;
  const Value source_;
  std::unique_ptr<Cursor> cursor_;
};

Result<Value> Unique(Interpreter& in, const Value& self, const BoundArgs& args) {
  const KeyGetter getter{{AttributePath(args.Or(1, Value::None()))}, args.Truth(0, false), {}};
  const auto seen = std::make_shared<Dict>();
  const auto cursor = std::make_shared<LateCursor>(in.budget(), self);
  return MakeGenerator(self, [&in, getter, seen, cursor](Value* out) -> Result<bool> {
    while (true) {
      TERN_ASSIGN_OR_RETURN(const bool more, cursor->Next(out));
      if (!more) return false;
      TERN_ASSIGN_OR_RETURN(const Value key, getter(in, *out));
      TERN_RETURN_IF_ERROR(Dict::CheckKey(key));
      if (seen->Find(key) != nullptr) continue;
      seen->Set(key, Value::None());
      return true;
    }
  });
}

Result<Value> Items(Interpreter& in, const Value& self, const BoundArgs&) {
  if (self.is_undefined() || self.is_dict()) {
    const auto view = std::make_shared<DictView>(
        in.budget(), self.is_dict() ? self : Value::MakeDict({}), DictView::Part::kItems);
    const std::shared_ptr<Cursor> cursor = view->Iterate();
    return MakeGenerator(self, [cursor](Value* out) { return cursor->Next(out); });
  }
  return MakeGenerator(self, [](Value*) -> Result<bool> {
    return TypeError("can only get item pairs from a mapping");
  });
}

Result<Value> Batch(Interpreter& in, const Value& self, const BoundArgs& args) {
  struct State {
    LateCursor cursor;
    std::vector<Value> row;
    bool done = false;
  };
  const auto state = std::make_shared<State>(State{LateCursor(in.budget(), self), {}, false});
  return MakeGenerator(self, [&in, args, state](Value* out) -> Result<bool> {
    const auto size = [&] { return static_cast<int64_t>(state->row.size()); };
    while (!state->done) {
      Value item;
      TERN_ASSIGN_OR_RETURN(const bool more, state->cursor.Next(&item));
      if (!more) {
        state->done = true;
        break;
      }
      // A count that is no number is never reached.
      TERN_ASSIGN_OR_RETURN(const bool full, Equal(in.budget(), Value::Int(size()), *args.Get(0)));
      if (full) {
        *out = Value::MakeList(std::exchange(state->row, {std::move(item)}));
        return true;
      }
      state->row.push_back(std::move(item));
    }
    if (state->row.empty()) return false;
    if (const Value fill = args.Or(1, Value::None()); !fill.is_none()) {
      TERN_ASSIGN_OR_RETURN(const int64_t count, args.Int(0, 0));
      const int64_t missing = count - size();
      if (missing > 0) {
        TERN_RETURN_IF_ERROR(in.budget().Step(missing));
        state->row.insert(state->row.end(), static_cast<size_t>(missing), fill);
      }
    }
    *out = Value::MakeList(std::exchange(state->row, {}));
    return true;
  });
}

Result<Value> SliceInto(Interpreter& in, const Value& self, const BoundArgs& args) {
  struct State {
    std::optional<std::vector<Value>> items;  // read with the first slice
    int64_t number = 0;
  };
  const auto state = std::make_shared<State>();
  return MakeGenerator(self, [&in, self, args, state](Value* out) -> Result<bool> {
    if (!state->items) {
      TERN_ASSIGN_OR_RETURN(state->items, ToItems(in.budget(), self));
    }
    TERN_ASSIGN_OR_RETURN(const int64_t slices, args.Int(0, 1));
    if (slices == 0) return InvalidArgument("integer division or modulo by zero");
    if (state->number >= slices) return false;
    TERN_RETURN_IF_ERROR(in.budget().Step());
    const auto length = static_cast<int64_t>(state->items->size());
    const int64_t each = length / slices, extra = length % slices, i = state->number++;
    const int64_t begin = i * each + std::min(i, extra);
    const int64_t end = begin + each + (i < extra ? 1 : 0);
    std::vector<Value> row(state->items->begin() + begin, state->items->begin() + end);
    const Value fill = args.Or(1, Value::None());
    if (!fill.is_none() && i >= extra) row.push_back(fill);
    *out = Value::MakeList(std::move(row));
    return true;
  });
}

Result<Value> First(Interpreter& in, const Value& self, const BoundArgs&) {
  TERN_ASSIGN_OR_RETURN(const std::unique_ptr<Cursor> cursor, Iterate(in.budget(), self));
  Value item;
  TERN_ASSIGN_OR_RETURN(const bool more, cursor->Next(&item));
  if (!more) return Value::Undef("no first item, sequence was empty");
  return item;
}

// Python's reversed(): sequences, dicts and their views.
Result<std::vector<Value>> Reversible(Interpreter& in, const Value& v) {
  if (v.is_string() || v.is_sequence() || v.is_dict() || v.is_undefined() ||
      v.as<RangeObject>() != nullptr || v.as<DictView>() != nullptr) {
    return ToItems(in.budget(), v);
  }
  return TypeError(fmt::format("'{}' object is not reversible", v.type_name()));
}

Result<Value> Last(Interpreter& in, const Value& self, const BoundArgs&) {
  TERN_ASSIGN_OR_RETURN(const std::vector<Value> items, Reversible(in, self));
  if (items.empty()) return Value::Undef("no last item, sequence was empty");
  return items.back();
}

Result<Value> Reverse(Interpreter& in, const Value& self, const BoundArgs&) {
  if (self.is_string()) {
    return Slice(in.budget(), self, Value::None(), Value::None(), Value::Int(-1));
  }
  if (!IsIterable(self)) return InvalidArgument("argument must be iterable");
  TERN_ASSIGN_OR_RETURN(std::vector<Value> items, ToItems(in.budget(), self));
  std::reverse(items.begin(), items.end());
  const bool eager = !Reversible(in, self).ok();  // a generator: jinja2 makes a list
  const Value list = Value::MakeList(std::move(items));
  if (eager) return list;
  TERN_ASSIGN_OR_RETURN(std::unique_ptr<Cursor> cursor, Iterate(in.budget(), list));
  return MakeGenerator(
      list, [cursor = std::shared_ptr(std::move(cursor))](Value* out) { return cursor->Next(out); },
      "list_reverseiterator");
}

Result<Value> Join(Interpreter& in, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const std::string separator,
                        ToStr(in.budget(), args.Or(0, Value::Str(""))));
  const std::vector<Value> path = AttributePath(args.Or(1, Value::None()));
  TERN_ASSIGN_OR_RETURN(const std::unique_ptr<Cursor> cursor, Iterate(in.budget(), self));
  std::string out;
  for (bool first = true;; first = false) {
    Value item;
    TERN_ASSIGN_OR_RETURN(const bool more, cursor->Next(&item));
    if (!more) return Value::Str(std::move(out));
    TERN_ASSIGN_OR_RETURN(item, GetPath(in, std::move(item), path));
    const size_t before = out.size();
    if (!first) out += separator;
    TERN_RETURN_IF_ERROR(AppendStr(in.budget(), item, &out));
    TERN_RETURN_IF_ERROR(in.budget().Allocate(static_cast<int64_t>(out.size() - before)));
  }
}

Result<Value> MakeListOf(Interpreter& in, const Value& self, const BoundArgs&) {
  TERN_ASSIGN_OR_RETURN(std::vector<Value> items, ToItems(in.budget(), self));
  return Value::MakeList(std::move(items));
}

Result<Value> Count(Interpreter&, const Value& self, const BoundArgs&) {
  TERN_ASSIGN_OR_RETURN(const int64_t length, Length(self));
  return Value::Int(length);
}

Result<Value> Sum(Interpreter& in, const Value& self, const BoundArgs& args) {
  const std::vector<Value> path = AttributePath(args.Or(0, Value::None()));
  Value total = args.Or(1, Value::Int(0));
  if (total.is_string()) return TypeError("sum() can't sum strings [use ''.join(seq) instead]");
  TERN_ASSIGN_OR_RETURN(const std::vector<Value> items, ToItems(in.budget(), self));
  for (const Value& item : items) {
    TERN_ASSIGN_OR_RETURN(const Value v, GetPath(in, item, path));
    TERN_ASSIGN_OR_RETURN(total, Arithmetic(in.budget(), BinaryOp::kAdd, total, v));
    TERN_RETURN_IF_ERROR(in.budget().Allocate(total.UnsharedBytes()));
  }
  return total;
}

constexpr std::array kTable = {
    Builtin{"batch", "linecount fill_with?", Batch},
    Builtin{"count", "", Count},
    Builtin{"dictsort", "case_sensitive? by? reverse?", DictSort},
    Builtin{"first", "", First},
    Builtin{"groupby", "attribute default? case_sensitive?", GroupBy},
    Builtin{"items", "", Items},
    Builtin{"join", "d? attribute?", Join},
    Builtin{"last", "", Last},
    Builtin{"length", "", Count},
    Builtin{"list", "", MakeListOf},
    Builtin{"map", "* **", Map},
    Builtin{"max", "case_sensitive? attribute?", Extreme<true>},
    Builtin{"min", "case_sensitive? attribute?", Extreme<false>},
    Builtin{"reject", "* **", Select<false, false>},
    Builtin{"rejectattr", "* **", Select<true, false>},
    Builtin{"reverse", "", Reverse},
    Builtin{"select", "* **", Select<false, true>},
    Builtin{"selectattr", "* **", Select<true, true>},
    Builtin{"slice", "slices fill_with?", SliceInto},
    Builtin{"sort", "reverse? case_sensitive? attribute?", Sort},
    Builtin{"sum", "attribute? start?", Sum},
    Builtin{"unique", "case_sensitive? attribute?", Unique},
};

}  // namespace

std::span<const Builtin> SequenceFilters() { return kTable; }

}  // namespace tern::jinja
