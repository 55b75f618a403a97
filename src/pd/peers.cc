#include "pd/peers.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "net/tcp.h"

namespace tern {
namespace {

using Address = std::array<uint8_t, 16>;

Address FromV4(const void* bytes) {
  Address address{};
  address[10] = address[11] = 0xFF;
  std::memcpy(address.data() + 12, bytes, 4);
  return address;
}
bool IsV4(const Address& address) {
  static constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  return std::equal(std::begin(kPrefix), std::end(kPrefix), address.begin());
}

std::optional<Address> ParseAddress(std::string_view text) {
  if (text.size() > 2 && text.front() == '[' && text.back() == ']') {
    text = text.substr(1, text.size() - 2);
  }
  const std::string copy(text);
  Address address{};
  in_addr v4{};
  if (inet_pton(AF_INET, copy.c_str(), &v4) == 1) return FromV4(&v4);
  if (inet_pton(AF_INET6, copy.c_str(), address.data()) == 1) return address;
  return std::nullopt;
}

bool SamePrefix(const Address& a, const Address& b, int bits) {
  const auto bytes = static_cast<size_t>(bits / 8);
  if (!std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(bytes), b.begin())) {
    return false;
  }
  const int rest = bits % 8;
  return rest == 0 || (a[bytes] ^ b[bytes]) >> (8 - rest) == 0;
}

int PrefixBits(std::span<const uint8_t> mask) {
  int bits = 0;
  for (const uint8_t byte : mask) bits += __builtin_popcount(byte);
  return bits;
}

std::string TextOf(const Address& address, int bits) {
  char text[INET6_ADDRSTRLEN] = "";
  if (IsV4(address) && bits >= 96) {
    inet_ntop(AF_INET, address.data() + 12, text, sizeof(text));
    bits -= 96;
  } else {
    inet_ntop(AF_INET6, address.data(), text, sizeof(text));
  }
  return fmt::format("{}/{}", text, bits);
}

}  // namespace

Result<PeerList> PeerList::Parse(std::string_view text) {
  PeerList list;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    std::string_view entry = text.substr(0, comma);
    text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
    while (!entry.empty() && entry.front() == ' ') entry.remove_prefix(1);
    while (!entry.empty() && entry.back() == ' ') entry.remove_suffix(1);
    if (entry.empty()) continue;
    const auto bad = [&](std::string_view why) {
      return InvalidArgument(fmt::format("--disaggregation-peers: '{}' {}", entry, why));
    };
    const size_t slash = entry.find('/');
    const std::optional<Address> address = ParseAddress(entry.substr(0, slash));
    if (!address) return bad("is no IP address or network");
    const int most = IsV4(*address) ? 32 : 128;
    int bits = most;
    if (slash != std::string_view::npos) {
      const std::string_view digits = entry.substr(slash + 1);
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
      if (error != std::errc() || end != digits.data() + digits.size() || bits < 0 || bits > most) {
        return bad(fmt::format("has no prefix length in 0..{}", most));
      }
    }
    list.networks_.push_back({*address, bits + (IsV4(*address) ? 96 : 0)});
  }
  return list;
}

PeerList PeerList::LoopbackAndOwnSubnets() {
  PeerList list = std::move(Parse("127.0.0.0/8,::1/128")).value();
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return list;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_netmask == nullptr || (i->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    if (i->ifa_addr->sa_family == AF_INET) {
      const auto& address = reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr;
      const auto& mask = reinterpret_cast<const sockaddr_in*>(i->ifa_netmask)->sin_addr;
      const auto* bytes = reinterpret_cast<const uint8_t*>(&mask);
      list.networks_.push_back({FromV4(&address), 96 + PrefixBits({bytes, 4})});
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      const auto& address = reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr;
      const auto& mask = reinterpret_cast<const sockaddr_in6*>(i->ifa_netmask)->sin6_addr;
      Address bytes{};
      std::memcpy(bytes.data(), &address, 16);
      list.networks_.push_back({bytes, PrefixBits({reinterpret_cast<const uint8_t*>(&mask), 16})});
    }
  }
  freeifaddrs(all);
  return list;
}

bool PeerList::Allows(std::string_view address) const {
  const std::optional<Address> parsed = ParseAddress(address);
  return parsed && std::any_of(networks_.begin(), networks_.end(), [&](const Network& network) {
           return SamePrefix(*parsed, network.address, network.bits);
         });
}

Result<std::string> PeerList::Resolve(std::string_view host) const {
  TERN_ASSIGN_OR_RETURN(const std::vector<std::string> addresses, ResolveHost(std::string(host)));
  for (const std::string& address : addresses) {
    if (Allows(address)) continue;
    return InvalidArgument(
        fmt::format("bootstrap_host '{}' ({}) is not among --disaggregation-peers", host, address));
  }
  return addresses.front();
}

std::string PeerList::ToString() const {
  std::string text;
  for (const Network& network : networks_) {
    text += (text.empty() ? "" : ",") + TextOf(network.address, network.bits);
  }
  return text;
}

}  // namespace tern
