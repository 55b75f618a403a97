// Global functions: jinja2's and the ones that transformers adds.
#include <fmt/format.h>

#include <array>
#include <ctime>

#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/objects.h"
#include "jinja/operators.h"

namespace tern::jinja {
namespace {

Result<Value> Range(Interpreter& in, const Value&, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const int64_t first, args.Int(0, 0));
  if (args.Get(1) == nullptr) return RangeObject::Make(in.budget(), 0, first, 1);
  TERN_ASSIGN_OR_RETURN(const int64_t stop, args.Int(1, 0));
  TERN_ASSIGN_OR_RETURN(const int64_t step, args.Int(2, 1));
  return RangeObject::Make(in.budget(), first, stop, step);
}

// dict(mapping or pairs, **names).
Result<Dict> BuildDict(Interpreter& in, const BoundArgs& args) {
  Dict dict;
  if (const Value* source = args.Get(0)) {
    if (source->is_dict()) {
      dict = source->dict();
    } else {
      TERN_ASSIGN_OR_RETURN(const std::vector<Value> pairs, ToItems(in.budget(), *source));
      for (const Value& pair : pairs) {
        TERN_ASSIGN_OR_RETURN(const std::vector<Value> entry, ToItems(in.budget(), pair));
        if (entry.size() != 2) {
          return InvalidArgument("dictionary update sequence elements must have length 2");
        }
        TERN_RETURN_IF_ERROR(Dict::CheckKey(entry[0]));
        dict.Set(entry[0], entry[1]);
      }
    }
  }
  for (const auto& [name, value] : args.rest().keyword) {
    TERN_RETURN_IF_ERROR(in.budget().Allocate(Dict::BytesOfNamed(name)));
    dict.Set(Value::Str(name), value);
  }
  return dict;
}

Result<Value> MakeDictOf(Interpreter& in, const Value&, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(Dict dict, BuildDict(in, args));
  return Value::MakeDict(std::move(dict));
}

Result<Value> FromKeys(Interpreter& in, const Value&, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const std::vector<Value> keys, ToItems(in.budget(), *args.Get(0)));
  Dict dict;
  for (const Value& key : keys) {
    TERN_RETURN_IF_ERROR(Dict::CheckKey(key));
    dict.Set(key, args.Or(1, Value::None()));
  }
  return Value::MakeDict(std::move(dict));
}

Result<Value> Namespace(Interpreter& in, const Value&, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(Dict dict, BuildDict(in, args));
  for (const auto& [key, value] : dict.entries()) {
    if (key.is_string()) TERN_RETURN_IF_ERROR(NamespaceObject::CheckName(key.str()));
  }
  TERN_RETURN_IF_ERROR(in.budget().Allocate(
      static_cast<int64_t>(sizeof(NamespaceObject) + sizeof(Dict)) + dict.Bytes()));
  const auto attributes = std::make_shared<Dict>(std::move(dict));
  in.AdoptNamespace(attributes);
  return Value::Of(std::make_shared<NamespaceObject>(attributes));
}

Result<Value> Cycler(Interpreter& in, const Value&, const BoundArgs& args) {
  if (args.rest().positional.empty()) {
    return InvalidArgument("at least one item has to be provided");
  }
  TERN_RETURN_IF_ERROR(
      in.budget().Allocate(static_cast<int64_t>(args.rest().positional.size() * sizeof(Value))));
  return Value::Of(std::make_shared<CyclerObject>(args.rest().positional));
}

Result<Value> Joiner(Interpreter&, const Value&, const BoundArgs& args) {
  return Value::Of(std::make_shared<JoinerObject>(args.Or(0, Value::Str(", "))));
}

Result<Value> RaiseException(Interpreter& in, const Value&, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(std::string message, ToStr(in.budget(), *args.Get(0)));
  return InvalidArgument(std::move(message));
}

// datetime.now().strftime(format), local time.
Result<Value> StrftimeNow(Interpreter& in, const Value&, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const auto given, args.Text(0));
  if (!given) return TypeError("strftime() argument 1 must be str");
  // Python answers these itself: microseconds, and nothing for a time without a zone.
  std::string format;
  for (size_t i = 0; i < given->size(); ++i) {
    const char next = i + 1 < given->size() ? (*given)[i + 1] : '\0';
    if ((*given)[i] != '%') {
      format += (*given)[i];
    } else if (next == 'f') {
      format += "000000";
      ++i;
    } else if (next == 'z' || next == 'Z') {
      ++i;
    } else {
      format += '%';
      if (next != '\0') format += next;
      ++i;
    }
  }
  const std::time_t now = in.clock().UnixSeconds();
  std::tm local{};
  localtime_r(&now, &local);
  // A conversion can give nothing, which strftime reports as it does a full buffer: a leading
  // blank tells them apart.
  std::string out(16 * format.size() + 256, '\0');
  out.resize(std::strftime(out.data(), out.size(), (" " + format).c_str(), &local));
  if (out.empty()) return InvalidArgument("strftime_now: the result is too long");
  return Value::Str(ReplaceInvalidUtf8(std::string_view(out).substr(1)));
}

constexpr std::array kTable = {
    Builtin{"cycler", "/ *", Cycler},
    Builtin{"dict", "/ source? **", MakeDictOf},
    Builtin{"dict.fromkeys", "/ iterable value?", FromKeys},
    Builtin{"joiner", "sep?", Joiner},
    Builtin{"namespace", "/ source? **", Namespace},
    Builtin{"raise_exception", "message", RaiseException},
    Builtin{"range", "/ start stop? step?", Range},
    Builtin{"strftime_now", "format", StrftimeNow},
};

}  // namespace

std::optional<Value> FindGlobal(std::string_view name) {
  for (const Builtin& builtin : kTable) {
    if (builtin.name == name) {
      return Value::Of(std::make_shared<FunctionObject>(builtin, Value::None()));
    }
  }
  return std::nullopt;
}

}  // namespace tern::jinja
