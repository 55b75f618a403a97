// Json: the one wrapper around nlohmann-json (key order kept, numbers printed as Python does).
// Parsing is bounded in depth because nlohmann's dump() and destructor recurse.
// Thread: values; nothing is shared.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tern {

using Json = nlohmann::ordered_json;

inline constexpr int kMaxJsonDepth = 128;

// Errors: kInvalidArgument with the byte position for malformed text, text nested deeper than
// kMaxJsonDepth, invalid UTF-8, numbers beyond double, or objects with tens of thousands of keys.
// Duplicate keys: the last one wins.
Result<Json> ParseJson(std::string_view text);
// Reads and parses a file; the message names it.
Result<Json> ParseJsonFile(const std::string& path);
// Compact text; invalid UTF-8 becomes U+FFFD instead of an exception. indent >= 0: pretty.
std::string DumpJson(const Json& json, int indent = -1);

// The member; null when it is absent or null, or `object` is none.
const Json* JsonMember(const Json& object, const char* key);

// Typed reads of object members that never throw. `where` names the object in messages.
// An absent or null key gives `fallback`; a key of another type gives kInvalidArgument
// "<where>.<key> must be <type>".
Result<int64_t> JsonInt(const Json& object, const char* key, int64_t fallback,
                        std::string_view where);
Result<double> JsonDouble(const Json& object, const char* key, double fallback,
                          std::string_view where);
Result<bool> JsonBool(const Json& object, const char* key, bool fallback, std::string_view where);
Result<std::string> JsonString(const Json& object, const char* key, std::string fallback,
                               std::string_view where);

// "text" with quotes and JSON escapes, for hand-built SSE chunks; invalid UTF-8 becomes U+FFFD.
std::string JsonQuote(std::string_view text);

}  // namespace tern
