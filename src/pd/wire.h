// Wire: the frames that a prefill and a decode worker exchange, as values and as bytes.
// docs/formats/pd_wire.md is the specification. Decoders take any bytes and return an error for
// all that the specification does not allow; they never read outside what they are given.
// Thread: pure functions, values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/sha256.h"
#include "kv/page_format.h"

namespace tern {

inline constexpr uint16_t kPdWireVersion = 1;
inline constexpr size_t kPdHeaderBytes = 64;
inline constexpr size_t kPdMacBytes = 32;
inline constexpr uint32_t kPdMaxHandshakeBytes = 48 << 10;
inline constexpr uint32_t kPdMaxPages = 65536;        // of a room
inline constexpr uint32_t kPdMaxLandingSlots = 4096;  // of a connection
inline constexpr uint32_t kPdMaxTopLogprobs = 128;
inline constexpr size_t kPdMaxTextBytes = 512;
inline constexpr size_t kPdMaxKeyBytes = 1024;  // of a cache salt, of an extra key

enum class PdFrameType : uint8_t {
  kHello = 1,
  kWelcome = 2,
  kConfirm = 3,
  kRefuse = 4,
  kRequest = 5,
  kPage = 6,
  kLast = 7,
  kAck = 8,
  kDone = 9,
  kAbort = 10,
  kAbortAck = 11,
  kPing = 12,
};
const char* PdFrameTypeName(PdFrameType type);  // "PAGE"

// Why a room or a connection ends.
enum class PdCode : uint16_t {
  kCancelled = 1,
  kOutOfPages = 2,
  kTimedOut = 3,
  kBadPage = 4,
  kOtherPrompt = 5,
  kRoomInUse = 6,
  kShutdown = 7,
  kInternal = 8,
  kOtherVersion = 9,
  kOtherModel = 10,
  kOtherRows = 11,
  kSecret = 12,
  kNotAPeer = 13,
  kProtocol = 14,
  kTooManyConnections = 15,
};
StatusCode StatusCodeOf(PdCode code);
PdCode PdCodeOf(const Status& status);  // what an ABORT says of a local error

struct PdHeader {
  PdFrameType type = PdFrameType::kPing;
  bool has_mac = false;
  uint32_t body_bytes = 0;
  uint32_t generation = 0;
  uint64_t sequence = 0;
  uint64_t room = 0;
  uint64_t tag = 0;
  uint32_t slot = 0;
  uint32_t page = 0;
  uint16_t rows = 0;
  uint8_t format = 0;  // KvFormat
  friend bool operator==(const PdHeader&, const PdHeader&) = default;
};

// One layer as the handshake describes it.
struct PdLayer {
  KvLayerSpec spec;
  KvFormat format = KvFormat::kBf16;     // of its slab
  std::optional<KvFormat> index_format;  // of its index slab; absent: no indexer
};

struct PdHello {
  enum class Role : uint8_t { kReceiver = 1, kSender = 2 };

  Sha256Digest model_id{};
  uint64_t boot_nonce = 0;
  std::array<std::byte, 32> nonce{};  // of this connection
  uint32_t page_tokens = 0;
  uint32_t landing_slots = 0;
  uint32_t max_body_bytes = 0;
  Role role = Role::kReceiver;
  bool convert_at_receiver = false;
  std::vector<PdLayer> layers;
};

struct PdEnd {  // REFUSE, ABORT
  PdCode code = PdCode::kInternal;
  std::string text;
};
Status StatusOf(const PdEnd& end);

struct PdRequest {
  Sha256Digest prompt_digest{};
  uint32_t prompt_tokens = 0;
  std::vector<uint64_t> tags;   // one for each of the receiver's pages
  std::vector<int32_t> tokens;  // empty, or the prompt: the sender has no request of its own
  std::string cache_salt, extra_key;
};

// What the sender's engine knows at the end of a prompt. Decode appends the token and never
// computes it again.
struct PdFirstToken {
  int32_t token = 0;
  std::optional<float> logprob;
  std::vector<std::pair<int32_t, float>> top_logprobs;
  uint32_t cached_tokens = 0;
  uint64_t seed = 0;      // of the sampler
  uint64_t position = 0;  // of the token in the sequence
  friend bool operator==(const PdFirstToken&, const PdFirstToken&) = default;
};

struct PdLast {
  Sha256Digest prompt_digest{};
  uint32_t prompt_tokens = 0;
  uint32_t pages = 0;
  PdFirstToken first;
};

// SHA-256 of the tokens, by which both sides tell that they mean one prompt.
Sha256Digest PromptDigest(std::span<const int32_t> tokens);

// ---- Bytes ----------------------------------------------------------------------------------

void EncodePdHeader(const PdHeader& header, std::span<std::byte, kPdHeaderBytes> out);
// Errors: kDataLoss (magic, check, reserved bytes, fields that its type does not have, body bytes
// that its type can't have), kUnimplemented (another version).
Result<PdHeader> DecodePdHeader(std::span<const std::byte, kPdHeaderBytes> bytes);

// A whole frame without mac: header.type, body_bytes and check are filled in from the rest.
std::vector<std::byte> EncodePdFrame(PdHeader header);  // a frame without body
std::vector<std::byte> EncodePdFrame(PdHeader header, const PdHello& hello);
std::vector<std::byte> EncodePdFrame(PdHeader header, const PdEnd& end);
std::vector<std::byte> EncodePdFrame(PdHeader header, const PdRequest& request);
std::vector<std::byte> EncodePdFrame(PdHeader header, const PdLast& last);
// A PAGE frame with `payload_bytes` of payload, zero, for the caller to fill (PdPayloadOf); then
// SealPdPage puts in what depends on it.
std::vector<std::byte> EncodePdPage(PdHeader header, size_t layers, size_t payload_bytes);
std::span<std::byte> PdPayloadOf(std::span<std::byte> page_frame, size_t layers);
void SealPdPage(std::span<std::byte> page_frame, std::span<const uint64_t> sums);
// Numbers a frame that is about to be sent, and says that a mac follows: rewrites header and check
// of meta. `layers` matters for PAGE.
void StampPdFrame(std::span<std::byte> frame, uint64_t sequence, bool has_mac, size_t layers);

// Bodies. `header` is the frame's decoded header, `body` its header.body_bytes bytes.
// Errors: kDataLoss, naming the frame and the field.
Result<PdHello> DecodePdHello(const PdHeader& header, std::span<const std::byte> body);
Result<PdEnd> DecodePdEnd(const PdHeader& header, std::span<const std::byte> body);
Result<PdRequest> DecodePdRequest(const PdHeader& header, std::span<const std::byte> body);
Result<PdLast> DecodePdLast(const PdHeader& header, std::span<const std::byte> body);
struct PdPageBody {
  std::vector<uint64_t> sums;  // one for each layer
  std::span<const std::byte> payload;
};
Result<PdPageBody> DecodePdPage(const PdHeader& header, std::span<const std::byte> body,
                                size_t layers);

}  // namespace tern
