#include "jinja/objects.h"

#include <fmt/format.h>

#include "jinja/operators.h"

namespace tern::jinja {
namespace {

constexpr int64_t kMaxRange = 100000;

// Items by position, for objects that know their length. Keeps its object alive.
class IndexCursor final : public Cursor {
 public:
  IndexCursor(Budget& budget, std::shared_ptr<Object> owner, int64_t length,
              std::function<Value(int64_t)> at)
      : budget_(budget), owner_(std::move(owner)), length_(length), at_(std::move(at)) {}
  Result<bool> Next(Value* out) override {
    TERN_RETURN_IF_ERROR(budget_.Step());
    if (i_ == length_) return false;
    *out = at_(i_++);
    return true;
  }

 private:
  Budget& budget_;
  const std::shared_ptr<Object> owner_;
  const int64_t length_;
  const std::function<Value(int64_t)> at_;
  int64_t i_ = 0;
};

class GeneratorCursor final : public Cursor {
 public:
  explicit GeneratorCursor(std::shared_ptr<Object> owner) : owner_(std::move(owner)) {}
  Result<bool> Next(Value* out) override { return static_cast<Generator&>(*owner_).Next(out); }

 private:
  const std::shared_ptr<Object> owner_;
};

Result<Value> LoopCycle(Interpreter&, const Value& self, const BoundArgs& args) {
  if (args.rest().positional.empty()) return TypeError("no items for cycling given");
  return self.as<LoopObject>()->Cycle(args.rest().positional);
}

Result<Value> LoopChanged(Interpreter& in, const Value& self, const BoundArgs& args) {
  LoopObject& loop = *self.as<LoopObject>();
  const Value now = Value::MakeTuple(args.rest().positional);
  TERN_RETURN_IF_ERROR(CheckDepth(now));
  if (loop.last_changed()) {
    TERN_ASSIGN_OR_RETURN(const bool same, Equal(in.budget(), *loop.last_changed(), now));
    if (same) return Value::Bool(false);
  }
  if (!loop.last_changed()) {
    TERN_RETURN_IF_ERROR(in.budget().Allocate(sizeof(LoopObject)));
    in.AdoptLoop(std::static_pointer_cast<LoopObject>(self.object_ptr()));
  }
  TERN_RETURN_IF_ERROR(in.budget().Allocate(now.UnsharedBytes()));
  loop.set_last_changed(now);
  return Value::Bool(true);
}

constexpr Builtin kLoopCycle = {"cycle", "/ *", LoopCycle};
constexpr Builtin kLoopChanged = {"changed", "/ *", LoopChanged};

constexpr Builtin kCyclerNext = {
    "next", "", [](Interpreter&, const Value& self, const BoundArgs&) -> Result<Value> {
      return self.as<CyclerObject>()->Next();
    }};
constexpr Builtin kCyclerReset = {
    "reset", "", [](Interpreter&, const Value& self, const BoundArgs&) -> Result<Value> {
      self.as<CyclerObject>()->Reset();
      return Value::None();
    }};

Value Bound(const Builtin& builtin, Object& object) {
  return Value::Of(std::make_shared<FunctionObject>(builtin, Value::Of(object.shared_from_this())));
}

}  // namespace

Result<Value> RangeObject::Make(Budget& budget, int64_t start, int64_t stop, int64_t step) {
  if (step == 0) return InvalidArgument("range() arg 3 must not be zero");
  auto range = std::make_shared<RangeObject>(budget, start, stop, step);
  if (*range->Length() > kMaxRange) {
    return InvalidArgument(fmt::format("range too big: the sandbox allows {} elements", kMaxRange));
  }
  return Value::Of(std::move(range));
}

Status RangeObject::AppendRepr(Budget&, int, std::string* out) const {
  *out += step_ == 1 ? fmt::format("range({}, {})", start_, stop_)
                     : fmt::format("range({}, {}, {})", start_, stop_, step_);
  return OkStatus();
}

std::optional<int64_t> RangeObject::Length() {
  // In 128 bits: the ends may be any two 64-bit numbers.
  const __int128 distance = static_cast<__int128>(stop_) - start_;
  if (step_ > 0 ? distance <= 0 : distance >= 0) return 0;
  const __int128 length = (distance + step_ - (step_ > 0 ? 1 : -1)) / step_;
  return length > INT64_MAX ? INT64_MAX : static_cast<int64_t>(length);
}

std::unique_ptr<Cursor> RangeObject::Iterate() {
  return std::make_unique<IndexCursor>(budget_, shared_from_this(), *Length(),
                                       [this](int64_t i) { return *Item(i); });
}

std::optional<Value> RangeObject::Item(int64_t index) {
  const int64_t length = *Length();
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  return Value::Int(start_ + index * step_);
}

std::optional<Value> RangeObject::Slice(int64_t from, int64_t to, int64_t step) {
  const auto at = [this](int64_t i, int64_t* out) {
    return !__builtin_mul_overflow(i, step_, out) && !__builtin_add_overflow(start_, *out, out);
  };
  int64_t start = 0, stop = 0, stride = 0;
  if (!at(from, &start) || !at(to, &stop) || __builtin_mul_overflow(step_, step, &stride)) {
    return std::nullopt;
  }
  return Value::Of(std::make_shared<RangeObject>(budget_, start, stop, stride));
}

std::optional<Value> RangeObject::Attribute(std::string_view name) {
  if (name == "start") return Value::Int(start_);
  if (name == "stop") return Value::Int(stop_);
  if (name == "step") return Value::Int(step_);
  return std::nullopt;
}

std::string_view DictView::type_name() const {
  return part_ == Part::kKeys ? "dict_keys" : part_ == Part::kValues ? "dict_values" : "dict_items";
}

Value DictView::At(size_t i) const {
  const auto& [key, value] = dict_.dict().entries()[i];
  switch (part_) {
    case Part::kKeys:
      return key;
    case Part::kValues:
      return value;
    case Part::kItems:
      break;
  }
  return Value::MakeTuple({key, value});
}

Status DictView::AppendRepr(Budget& budget, int depth, std::string* out) const {
  *out += std::string(type_name()) + "([";
  for (size_t i = 0; i < dict_.dict().size(); ++i) {
    if (i > 0) *out += ", ";
    TERN_RETURN_IF_ERROR(jinja::AppendRepr(budget, At(i), depth + 1, out));
  }
  *out += "])";
  return OkStatus();
}

std::optional<int64_t> DictView::Length() { return static_cast<int64_t>(dict_.dict().size()); }

std::unique_ptr<Cursor> DictView::Iterate() {
  return std::make_unique<IndexCursor>(budget_, shared_from_this(), *Length(),
                                       [this](int64_t i) { return At(static_cast<size_t>(i)); });
}

std::unique_ptr<Cursor> Generator::Iterate() {
  return std::make_unique<GeneratorCursor>(shared_from_this());
}

Result<bool> Generator::Next(Value* out) {
  if (running_) return InvalidArgument("generator already executing");
  if (!next_) return false;
  running_ = true;
  Result<bool> more = next_(out);
  running_ = false;
  if (!more.ok() || !more.value()) next_ = nullptr;
  return more;
}

Value MakeGenerator(const Value& source, Generator::NextFunction next, std::string_view type) {
  return Value::Of(std::make_shared<Generator>(type, source, std::move(next)));
}

Status NamespaceObject::CheckName(std::string_view name) {
  if (!name.starts_with('_')) return OkStatus();
  return InvalidArgument(
      fmt::format("a namespace may not have attributes that start with an underscore: '{}'", name));
}

Status NamespaceObject::AppendRepr(Budget& budget, int depth, std::string* out) const {
  *out += "<Namespace ";
  // A copy of the entries: values are shared, and the dict may not be wrapped in a Value here.
  TERN_RETURN_IF_ERROR(
      jinja::AppendRepr(budget, Value::MakeDict(Dict(*attributes_)), depth + 1, out));
  *out += '>';
  return OkStatus();
}

std::optional<Value> NamespaceObject::Attribute(std::string_view name) {
  const Value* value = attributes_->Find(name);
  return value == nullptr ? std::nullopt : std::optional<Value>(*value);
}

Status MacroObject::AppendRepr(Budget&, int, std::string* out) const {
  *out += "<Macro " + StringRepr(macro_.name) + ">";
  return OkStatus();
}

std::optional<Value> MacroObject::Attribute(std::string_view name) {
  if (name == "name") return Value::Str(macro_.name);
  if (name == "catch_kwargs") return Value::Bool(macro_.uses_kwargs);
  if (name == "catch_varargs") return Value::Bool(macro_.uses_varargs);
  if (name == "caller") return Value::Bool(macro_.uses_caller);
  if (name != "arguments") return std::nullopt;
  std::vector<Value> names;
  for (const std::string& parameter : macro_.parameters) names.push_back(Value::Str(parameter));
  return Value::MakeTuple(std::move(names));
}

Result<Value> FunctionObject::Call(Interpreter& interpreter, Args args) {
  TERN_ASSIGN_OR_RETURN(const BoundArgs bound,
                        Bind(builtin_.name, builtin_.params, std::move(args)));
  return builtin_.run(interpreter, self_, bound);
}

std::optional<Value> FunctionObject::Attribute(std::string_view name) {
  // dict.fromkeys is the one attribute of a global.
  if (builtin_.name != "dict" || name != "fromkeys") return std::nullopt;
  return FindGlobal("dict.fromkeys");
}

LoopObject::LoopObject(Budget& budget, const ForStmt& stmt, ScopePtr scope, const Value& items,
                       std::unique_ptr<Cursor> cursor, int depth0)
    : budget_(budget),
      stmt_(stmt),
      scope_(std::move(scope)),
      depth0_(depth0),
      depth_(items.depth() + 1),
      cursor_(std::move(cursor)) {
  if (const Result<int64_t> length = jinja::Length(items); length.ok()) length_ = *length;
}

Result<bool> LoopObject::Next(Value* out) {
  TERN_RETURN_IF_ERROR(status_);
  if (!Peek()) {
    TERN_RETURN_IF_ERROR(status_);
    return false;
  }
  before_ = std::move(current_);
  current_ = std::move(after_);
  after_.reset();
  ++index0_;
  *out = *current_;
  return true;
}

bool LoopObject::Peek() {
  if (after_) return true;
  if (!buffered_.empty()) {
    after_ = std::move(buffered_.back());
    buffered_.pop_back();
    return true;
  }
  if (!cursor_) return false;
  Value item;
  const Result<bool> more = cursor_->Next(&item);
  if (!more.ok()) status_ = more.status();
  if (!more.ok() || !*more) {
    cursor_.reset();
    return false;
  }
  after_ = std::move(item);
  return true;
}

int64_t LoopObject::CountItems() {
  if (length_) return *length_;
  Peek();
  std::vector<Value> rest;
  if (after_) rest.push_back(std::move(*after_));
  after_.reset();
  while (Peek()) {
    rest.push_back(std::move(*after_));
    after_.reset();
  }
  length_ = index0_ + 1 + static_cast<int64_t>(rest.size());
  buffered_.assign(rest.rbegin(), rest.rend());
  return *length_;
}

std::optional<int64_t> LoopObject::Length() { return CountItems(); }

std::optional<Value> LoopObject::Attribute(std::string_view name) {
  if (name == "index0") return Value::Int(index0_);
  if (name == "index") return Value::Int(index0_ + 1);
  if (name == "first") return Value::Bool(index0_ == 0);
  if (name == "last") return Value::Bool(!Peek());
  if (name == "length") return Value::Int(CountItems());
  if (name == "revindex") return Value::Int(CountItems() - index0_);
  if (name == "revindex0") return Value::Int(CountItems() - index0_ - 1);
  if (name == "depth") return Value::Int(depth0_ + 1);
  if (name == "depth0") return Value::Int(depth0_);
  if (name == "previtem") {
    return before_ ? *before_ : Value::Undef("there is no previous item");
  }
  if (name == "nextitem") return Peek() ? *after_ : Value::Undef("there is no next item");
  if (name == "cycle") return Bound(kLoopCycle, *this);
  if (name == "changed") return Bound(kLoopChanged, *this);
  return std::nullopt;
}

Result<Value> LoopObject::Call(Interpreter& interpreter, Args args) {
  if (!stmt_.recursive) {
    return TypeError("the loop must have the 'recursive' marker to be called recursively");
  }
  TERN_ASSIGN_OR_RETURN(const BoundArgs bound, Bind("loop", "/ iterable", std::move(args)));
  TERN_ASSIGN_OR_RETURN(std::string text, interpreter.CallLoop(*this, *bound.Get(0)));
  return Value::Str(std::move(text));
}

std::optional<Value> CyclerObject::Attribute(std::string_view name) {
  if (name == "current") return items_.items()[pos_];
  if (name == "next") return Bound(kCyclerNext, *this);
  if (name == "reset") return Bound(kCyclerReset, *this);
  return std::nullopt;
}

Value CyclerObject::Next() {
  const Value item = items_.items()[pos_];
  pos_ = (pos_ + 1) % items_.items().size();
  return item;
}

Result<Value> JoinerObject::Call(Interpreter&, Args) {
  if (used_) return separator_;
  used_ = true;
  return Value::Str("");
}

}  // namespace tern::jinja
