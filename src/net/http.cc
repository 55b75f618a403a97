#include "net/http.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace tern {
namespace {

bool EqualIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

const std::string* FindHeader(const HttpHeaders& headers, std::string_view name) {
  for (const HttpHeader& header : headers) {
    if (EqualIgnoringCase(header.name, name)) return &header.value;
  }
  return nullptr;
}

std::optional<std::string> HttpRequest::QueryParameter(std::string_view name) const {
  std::string_view rest = query;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('&'), rest.size());
    const std::string_view pair = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const size_t equals = std::min(pair.find('='), pair.size());
    if (PercentDecode(pair.substr(0, equals), true) != name) continue;
    return PercentDecode(pair.substr(std::min(equals + 1, pair.size())), true);
  }
  return std::nullopt;
}

std::string_view HttpReason(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

std::string PercentDecode(std::string_view text, bool plus_is_space) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 &&
        HexDigit(text[i + 2]) >= 0) {
      out += static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2]));
      i += 2;
    } else {
      out += plus_is_space && text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

Result<Url> ParseUrl(std::string_view text) {
  constexpr std::string_view kHttp = "http://";
  if (text.substr(0, 8) == "https://") {
    return Unimplemented(fmt::format("'{}': https is not supported, use http://", text));
  }
  const Status bad = InvalidArgument(fmt::format("'{}' is not a URL like http://host:port", text));
  if (text.substr(0, kHttp.size()) != kHttp) return bad;
  std::string_view rest = text.substr(kHttp.size());
  Url url;
  const size_t slash = std::min(rest.find('/'), rest.size());
  url.target = slash == rest.size() ? "/" : std::string(rest.substr(slash));
  std::string_view authority = rest.substr(0, slash);
  if (!authority.empty() && authority[0] == '[') {  // an IPv6 address
    const size_t bracket = authority.find(']');
    if (bracket == std::string_view::npos) return bad;
    url.host = authority.substr(1, bracket - 1);
    authority.remove_prefix(bracket + 1);
  } else {
    const size_t colon = std::min(authority.find(':'), authority.size());
    url.host = authority.substr(0, colon);
    authority.remove_prefix(colon);
  }
  url.port = "80";
  if (!authority.empty()) {
    if (authority[0] != ':') return bad;
    url.port = authority.substr(1);
    if (url.port.empty() || url.port.size() > 5 ||
        !std::all_of(url.port.begin(), url.port.end(),
                     [](char c) { return c >= '0' && c <= '9'; })) {
      return bad;
    }
  }
  if (url.host.empty()) return bad;
  return url;
}

}  // namespace tern
