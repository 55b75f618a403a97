// PeerList: which addresses may be the other side of a hand-off (--disaggregation-peers).
// Thread: immutable values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tern {

class PeerList {
 public:
  // Networks and addresses, comma-separated: "10.0.0.0/8,192.168.1.7,fd00::/8".
  // Errors: kInvalidArgument, naming the entry.
  static Result<PeerList> Parse(std::string_view text);
  // Loopback and the subnets of this machine's interfaces.
  static PeerList LoopbackAndOwnSubnets();

  // `address`: numeric IPv4 or IPv6 (also in brackets, also IPv4 mapped to IPv6). False for
  // anything else.
  bool Allows(std::string_view address) const;
  // Resolves a host name; allowed when all of its addresses are. Returns the address to connect to.
  // Errors: kInvalidArgument naming the host (unknown, or outside the list): a client's 400.
  // May wait for a name server: numeric addresses don't.
  Result<std::string> Resolve(std::string_view host) const;

  std::string ToString() const;

 private:
  struct Network {
    std::array<uint8_t, 16> address{};  // IPv4 as ::ffff:a.b.c.d
    int bits = 0;                       // 0..128
  };
  std::vector<Network> networks_;
};

}  // namespace tern
