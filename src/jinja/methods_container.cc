// Methods of list, tuple and dict. Those that change them are not there: the sandbox forbids them.
#include <algorithm>
#include <array>

#include "jinja/builtins.h"
#include "jinja/objects.h"
#include "jinja/operators.h"

namespace tern::jinja {
namespace {

Result<Value> ListCount(Interpreter& in, const Value& self, const BoundArgs& args) {
  int64_t count = 0;
  for (const Value& item : self.items()) {
    TERN_ASSIGN_OR_RETURN(const bool equal, Equal(in.budget(), item, *args.Get(0)));
    count += equal;
  }
  return Value::Int(count);
}

Result<Value> ListIndex(Interpreter& in, const Value& self, const BoundArgs& args) {
  const auto length = static_cast<int64_t>(self.items().size());
  TERN_ASSIGN_OR_RETURN(int64_t begin, args.Int(1, 0));
  TERN_ASSIGN_OR_RETURN(int64_t end, args.Int(2, length));
  if (begin < 0) begin = std::max<int64_t>(0, begin + length);
  if (end < 0) end += length;
  for (int64_t i = begin; i < std::min(end, length); ++i) {
    TERN_ASSIGN_OR_RETURN(const bool equal,
                          Equal(in.budget(), self.items()[static_cast<size_t>(i)], *args.Get(0)));
    if (equal) return Value::Int(i);
  }
  return InvalidArgument("the value is not in the list");
}

Result<Value> Copy(Interpreter&, const Value& self, const BoundArgs&) { return self; }

template <DictView::Part kPart>
Result<Value> View(Interpreter& in, const Value& self, const BoundArgs&) {
  return Value::Of(std::make_shared<DictView>(in.budget(), self, kPart));
}

Result<Value> DictGet(Interpreter&, const Value& self, const BoundArgs& args) {
  TERN_RETURN_IF_ERROR(Dict::CheckKey(*args.Get(0)));
  const Value* value = self.dict().Find(*args.Get(0));
  return value != nullptr ? *value : args.Or(1, Value::None());
}

// A tuple has no copy(); having one does no harm.
constexpr std::array kListTable = {
    Builtin{"copy", "/", Copy},
    Builtin{"count", "/ value", ListCount},
    Builtin{"index", "/ value start? stop?", ListIndex},
};

constexpr std::array kDictTable = {
    Builtin{"copy", "/", Copy},
    Builtin{"get", "/ key default?", DictGet},
    Builtin{"items", "/", View<DictView::Part::kItems>},
    Builtin{"keys", "/", View<DictView::Part::kKeys>},
    Builtin{"values", "/", View<DictView::Part::kValues>},
};

}  // namespace

std::span<const Builtin> ListMethods() { return kListTable; }
std::span<const Builtin> DictMethods() { return kDictTable; }

}  // namespace tern::jinja
