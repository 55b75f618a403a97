#include "pd/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "pd/bytes.h"

namespace tern {
namespace {

constexpr uint32_t kMagic = 0x44504E54;  // "TNPD"
constexpr uint8_t kFlagMac = 1;
constexpr size_t kCheckBytes = 8;
constexpr size_t kHeaderCheckAt = 56;
constexpr uint8_t kNoIndexer = 255;
constexpr size_t kLayerBytes = 24;
constexpr size_t kMaxLayers = 1024;
constexpr int64_t kMaxPageTokens = 1024;

template <typename T>
T ReadAt(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}
template <typename T>
void WriteAt(std::span<std::byte> bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

bool IsKnownType(uint8_t type) {
  return type >= static_cast<uint8_t>(PdFrameType::kHello) &&
         type <= static_cast<uint8_t>(PdFrameType::kPing);
}
bool HasRoom(PdFrameType type) {
  return type >= PdFrameType::kRequest && type <= PdFrameType::kAbortAck;
}
bool HasBody(PdFrameType type) {
  switch (type) {
    case PdFrameType::kHello:
    case PdFrameType::kWelcome:
    case PdFrameType::kRefuse:
    case PdFrameType::kRequest:
    case PdFrameType::kPage:
    case PdFrameType::kLast:
    case PdFrameType::kAbort:
      return true;
    default:
      return false;
  }
}
bool IsKnownFormat(uint8_t format) { return format <= static_cast<uint8_t>(KvFormat::kFp8DsMla); }

Status Broken(PdFrameType type, std::string_view what) {
  return DataLoss(fmt::format("{} frame: {}", PdFrameTypeName(type), what));
}

uint64_t HeaderCheck(std::span<const std::byte> frame) {
  return Hash64(frame.first(kHeaderCheckAt));
}

// The meta of a body without its check, if that is right.
Result<std::span<const std::byte>> CheckedMeta(const PdHeader& header,
                                               std::span<const std::byte> meta) {
  if (meta.size() < kCheckBytes) return Broken(header.type, "its body is too short");
  std::byte bytes[kPdHeaderBytes];
  EncodePdHeader(header, bytes);
  const auto fields = meta.first(meta.size() - kCheckBytes);
  const auto check = ReadAt<uint64_t>(meta, fields.size());
  if (check != Hash64(fields, HeaderCheck(bytes))) {
    return Broken(header.type, "its check does not match its body");
  }
  return fields;
}

// Appends a header's place; fields follow.
std::vector<std::byte> NewFrame() { return std::vector<std::byte>(kPdHeaderBytes); }

// Header and check of a frame whose fields are there and whose meta ends at `meta_end`.
void Complete(PdHeader header, std::span<std::byte> frame, size_t meta_end) {
  header.body_bytes = static_cast<uint32_t>(frame.size() - kPdHeaderBytes);
  EncodePdHeader(header, frame.first<kPdHeaderBytes>());
  if (meta_end == kPdHeaderBytes) return;
  const size_t check_at = meta_end - kCheckBytes;
  WriteAt(frame, check_at,
          Hash64(frame.subspan(kPdHeaderBytes, check_at - kPdHeaderBytes), HeaderCheck(frame)));
}

std::vector<std::byte> Finish(PdHeader header, std::vector<std::byte> frame) {
  frame.resize(frame.size() + kCheckBytes);
  Complete(header, frame, frame.size());
  return frame;
}

void PutLayer(const PdLayer& layer, ByteWriter& out) {
  const KvLayerSpec& spec = layer.spec;
  const bool gqa = spec.kind == KvLayerSpec::Kind::kGqa;
  out.Put(static_cast<uint8_t>(gqa ? 0 : 1));
  out.Put(static_cast<uint8_t>(layer.format));
  out.Put(layer.index_format ? static_cast<uint8_t>(*layer.index_format) : kNoIndexer);
  out.Put(uint8_t{0});
  out.Put(static_cast<uint32_t>(gqa ? spec.kv_heads : spec.latent));
  out.Put(static_cast<uint32_t>(gqa ? spec.head_dim : spec.rope));
  out.Put(static_cast<uint32_t>(spec.index_dim));
  out.Put(spec.k_scale);
  out.Put(spec.v_scale);
}

// False when a field is not one of the specification's.
bool GetLayer(ByteReader& in, PdLayer* layer) {
  const auto kind = in.Get<uint8_t>(), format = in.Get<uint8_t>(), index = in.Get<uint8_t>();
  const auto reserved = in.Get<uint8_t>();
  const auto a = in.Get<uint32_t>(), b = in.Get<uint32_t>();
  KvLayerSpec& spec = layer->spec;
  spec.index_dim = in.Get<uint32_t>();
  spec.k_scale = in.Get<float>();
  spec.v_scale = in.Get<float>();
  if (kind > 1 || reserved != 0 || !IsKnownFormat(format)) return false;
  if ((index != kNoIndexer) != (spec.index_dim > 0)) return false;
  if (index != kNoIndexer && !IsKnownFormat(index)) return false;
  layer->format = static_cast<KvFormat>(format);
  if (index != kNoIndexer) layer->index_format = static_cast<KvFormat>(index);
  if (kind == 0) {
    spec.kind = KvLayerSpec::Kind::kGqa;
    spec.kv_heads = a;
    spec.head_dim = b;
  } else {
    spec.kind = KvLayerSpec::Kind::kMla;
    spec.latent = a;
    spec.rope = b;
  }
  // Sizes and scales that no page can have.
  return PageFormat::Make({&spec, 1}, layer->format, 1).ok();
}

}  // namespace

const char* PdFrameTypeName(PdFrameType type) {
  static constexpr const char* kNames[] = {
      "?",    "HELLO", "WELCOME", "CONFIRM", "REFUSE",    "REQUEST", "PAGE",
      "LAST", "ACK",   "DONE",    "ABORT",   "ABORT_ACK", "PING",
  };
  return IsKnownType(static_cast<uint8_t>(type)) ? kNames[static_cast<size_t>(type)] : kNames[0];
}

StatusCode StatusCodeOf(PdCode code) {
  switch (code) {
    case PdCode::kCancelled:
      return StatusCode::kCancelled;
    case PdCode::kOutOfPages:
      return StatusCode::kResourceExhausted;
    case PdCode::kTimedOut:
      return StatusCode::kDeadlineExceeded;
    case PdCode::kBadPage:
      return StatusCode::kDataLoss;
    case PdCode::kRoomInUse:
    case PdCode::kOtherPrompt:
      return StatusCode::kInvalidArgument;
    case PdCode::kShutdown:
    case PdCode::kTooManyConnections:
      return StatusCode::kUnavailable;
    case PdCode::kOtherVersion:
    case PdCode::kOtherModel:
    case PdCode::kOtherRows:
    case PdCode::kSecret:
    case PdCode::kNotAPeer:
      return StatusCode::kFailedPrecondition;
    case PdCode::kInternal:
    case PdCode::kProtocol:
      break;
  }
  return StatusCode::kInternal;
}

PdCode PdCodeOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kCancelled:
      return PdCode::kCancelled;
    case StatusCode::kResourceExhausted:
      return PdCode::kOutOfPages;
    case StatusCode::kDeadlineExceeded:
      return PdCode::kTimedOut;
    case StatusCode::kDataLoss:
      return PdCode::kBadPage;
    case StatusCode::kUnavailable:
      return PdCode::kShutdown;
    default:
      return PdCode::kInternal;
  }
}

Status StatusOf(const PdEnd& end) { return {StatusCodeOf(end.code), end.text}; }

Sha256Digest PromptDigest(std::span<const int32_t> tokens) {
  Sha256 hash;
  hash.Update("tern prompt 1");
  hash.Update(std::as_bytes(tokens));
  return hash.Finish();
}

void EncodePdHeader(const PdHeader& header, std::span<std::byte, kPdHeaderBytes> out) {
  std::fill(out.begin(), out.end(), std::byte{0});
  WriteAt(out, 0, kMagic);
  WriteAt(out, 4, kPdWireVersion);
  WriteAt(out, 6, static_cast<uint8_t>(header.type));
  WriteAt(out, 7, header.has_mac ? kFlagMac : uint8_t{0});
  WriteAt(out, 8, header.body_bytes);
  WriteAt(out, 12, header.generation);
  WriteAt(out, 16, header.sequence);
  WriteAt(out, 24, header.room);
  WriteAt(out, 32, header.tag);
  WriteAt(out, 40, header.slot);
  WriteAt(out, 44, header.page);
  WriteAt(out, 48, header.rows);
  WriteAt(out, 50, header.format);
  WriteAt(out, kHeaderCheckAt, HeaderCheck(out));
}

Result<PdHeader> DecodePdHeader(std::span<const std::byte, kPdHeaderBytes> bytes) {
  if (ReadAt<uint32_t>(bytes, 0) != kMagic) return DataLoss("a frame does not begin with TNPD");
  const auto version = ReadAt<uint16_t>(bytes, 4);
  if (version != kPdWireVersion) {
    return Unimplemented(fmt::format("the peer speaks version {} of the wire, this is version {}",
                                     version, kPdWireVersion));
  }
  if (ReadAt<uint64_t>(bytes, kHeaderCheckAt) != HeaderCheck(bytes)) {
    return DataLoss("a frame's header does not match its check");
  }
  const auto type = ReadAt<uint8_t>(bytes, 6), flags = ReadAt<uint8_t>(bytes, 7);
  if (!IsKnownType(type)) return DataLoss(fmt::format("frame type {} is unknown", type));
  PdHeader header{.type = static_cast<PdFrameType>(type),
                  .has_mac = (flags & kFlagMac) != 0,
                  .body_bytes = ReadAt<uint32_t>(bytes, 8),
                  .generation = ReadAt<uint32_t>(bytes, 12),
                  .sequence = ReadAt<uint64_t>(bytes, 16),
                  .room = ReadAt<uint64_t>(bytes, 24),
                  .tag = ReadAt<uint64_t>(bytes, 32),
                  .slot = ReadAt<uint32_t>(bytes, 40),
                  .page = ReadAt<uint32_t>(bytes, 44),
                  .rows = ReadAt<uint16_t>(bytes, 48),
                  .format = ReadAt<uint8_t>(bytes, 50)};
  const bool page = header.type == PdFrameType::kPage, ack = header.type == PdFrameType::kAck;
  const bool handshake = header.type <= PdFrameType::kRefuse;
  const auto reserved = bytes.subspan(51, kHeaderCheckAt - 51);
  if ((flags & ~kFlagMac) != 0 || std::any_of(reserved.begin(), reserved.end(),
                                              [](std::byte b) { return b != std::byte{0}; })) {
    return Broken(header.type, "reserved bytes are not zero");
  }
  if (HasRoom(header.type) ? header.generation == 0 : (header.generation | header.room) != 0) {
    return Broken(header.type, "it names a room it can't have");
  }
  if (!page && (header.tag != 0 || header.rows != 0 || header.format != 0)) {
    return Broken(header.type, "it has the fields of a page");
  }
  if (!page && !ack && (header.slot != 0 || header.page != 0)) {
    return Broken(header.type, "it names a slot or a page");
  }
  if (page && (header.rows == 0 || header.rows > kMaxPageTokens || header.tag == 0 ||
               !IsKnownFormat(header.format))) {
    return Broken(header.type, "rows, tag or format can't be");
  }
  if (header.slot >= kPdMaxLandingSlots || header.page >= kPdMaxPages) {
    return Broken(header.type, "slot or page is too large");
  }
  if (handshake != (header.sequence == 0) && header.type != PdFrameType::kRefuse) {
    return Broken(header.type, "its sequence number can't be");
  }
  if (HasBody(header.type) != (header.body_bytes > 0)) {
    return Broken(header.type, "its body's length can't be");
  }
  return header;
}

std::vector<std::byte> EncodePdFrame(PdHeader header) {
  std::vector<std::byte> frame = NewFrame();
  Complete(header, frame, frame.size());
  return frame;
}

std::vector<std::byte> EncodePdFrame(PdHeader header, const PdHello& hello) {
  std::vector<std::byte> frame = NewFrame();
  ByteWriter out(&frame);
  out.Bytes(hello.model_id);
  out.Put(hello.boot_nonce);
  out.Bytes(hello.nonce);
  out.Put(hello.page_tokens);
  out.Put(hello.landing_slots);
  out.Put(hello.max_body_bytes);
  out.Put(static_cast<uint8_t>(hello.role));
  out.Put(static_cast<uint8_t>(hello.convert_at_receiver ? 1 : 0));
  out.Put(static_cast<uint16_t>(hello.layers.size()));
  for (const PdLayer& layer : hello.layers) PutLayer(layer, out);
  return Finish(header, std::move(frame));
}

std::vector<std::byte> EncodePdFrame(PdHeader header, const PdEnd& end) {
  std::vector<std::byte> frame = NewFrame();
  ByteWriter out(&frame);
  out.Put(static_cast<uint16_t>(end.code));
  const std::string text = ReplaceInvalidUtf8(end.text).substr(0, kPdMaxTextBytes);
  out.Text(std::string_view(text).substr(0, CompleteUtf8Prefix(text)), kPdMaxTextBytes);
  return Finish(header, std::move(frame));
}

std::vector<std::byte> EncodePdFrame(PdHeader header, const PdRequest& request) {
  std::vector<std::byte> frame = NewFrame();
  ByteWriter out(&frame);
  out.Bytes(request.prompt_digest);
  out.Put(request.prompt_tokens);
  out.Put(static_cast<uint32_t>(request.tags.size()));
  out.Bytes(std::as_bytes(std::span(request.tags)));
  out.Put(static_cast<uint32_t>(request.tokens.size()));
  out.Bytes(std::as_bytes(std::span(request.tokens)));
  out.Text(request.cache_salt, kPdMaxKeyBytes);
  out.Text(request.extra_key, kPdMaxKeyBytes);
  return Finish(header, std::move(frame));
}

std::vector<std::byte> EncodePdFrame(PdHeader header, const PdLast& last) {
  std::vector<std::byte> frame = NewFrame();
  ByteWriter out(&frame);
  out.Bytes(last.prompt_digest);
  out.Put(last.prompt_tokens);
  out.Put(last.pages);
  out.Put(last.first.token);
  out.Put(static_cast<uint32_t>(last.first.logprob ? 1 : 0));
  out.Put(last.first.logprob.value_or(0.0f));
  out.Put(last.first.cached_tokens);
  out.Put(last.first.seed);
  out.Put(last.first.position);
  const size_t top = std::min<size_t>(last.first.top_logprobs.size(), kPdMaxTopLogprobs);
  out.Put(static_cast<uint32_t>(top));
  for (size_t i = 0; i < top; ++i) {
    out.Put(last.first.top_logprobs[i].first);
    out.Put(last.first.top_logprobs[i].second);
  }
  return Finish(header, std::move(frame));
}

std::vector<std::byte> EncodePdPage(PdHeader header, size_t layers, size_t payload_bytes) {
  header.type = PdFrameType::kPage;
  const size_t meta = 8 * layers + kCheckBytes;
  std::vector<std::byte> frame(kPdHeaderBytes + meta + payload_bytes);
  Complete(header, frame, kPdHeaderBytes + meta);
  return frame;
}

std::span<std::byte> PdPayloadOf(std::span<std::byte> page_frame, size_t layers) {
  return page_frame.subspan(kPdHeaderBytes + 8 * layers + kCheckBytes);
}

void SealPdPage(std::span<std::byte> page_frame, std::span<const uint64_t> sums) {
  const auto bytes = std::as_bytes(sums);
  std::copy(bytes.begin(), bytes.end(), page_frame.begin() + kPdHeaderBytes);
  const size_t check_at = kPdHeaderBytes + bytes.size();
  WriteAt(page_frame, check_at, Hash64(bytes, HeaderCheck(page_frame)));
}

void StampPdFrame(std::span<std::byte> frame, uint64_t sequence, bool has_mac, size_t layers) {
  TERN_CHECK(frame.size() >= kPdHeaderBytes);
  WriteAt(frame, 7, has_mac ? kFlagMac : uint8_t{0});
  WriteAt(frame, 16, sequence);
  WriteAt(frame, kHeaderCheckAt, HeaderCheck(frame));
  const auto type = static_cast<PdFrameType>(ReadAt<uint8_t>(frame, 6));
  const size_t body = frame.size() - kPdHeaderBytes;
  if (body == 0) return;
  const size_t meta = type == PdFrameType::kPage ? 8 * layers + kCheckBytes : body;
  WriteAt(frame, kPdHeaderBytes + meta - kCheckBytes,
          Hash64(frame.subspan(kPdHeaderBytes, meta - kCheckBytes), HeaderCheck(frame)));
}

Result<PdHello> DecodePdHello(const PdHeader& header, std::span<const std::byte> body) {
  TERN_ASSIGN_OR_RETURN(const auto fields, CheckedMeta(header, body));
  ByteReader in(fields);
  PdHello hello;
  const auto model_id = in.Bytes(32);
  std::copy(model_id.begin(), model_id.end(), hello.model_id.begin());
  hello.boot_nonce = in.Get<uint64_t>();
  const auto nonce = in.Bytes(32);
  std::copy(nonce.begin(), nonce.end(), hello.nonce.begin());
  hello.page_tokens = in.Get<uint32_t>();
  hello.landing_slots = in.Get<uint32_t>();
  hello.max_body_bytes = in.Get<uint32_t>();
  const auto role = in.Get<uint8_t>(), conversion = in.Get<uint8_t>();
  const size_t layers = in.Get<uint16_t>();
  if (!in.ok() || layers < 1 || layers > kMaxLayers || in.left() != layers * kLayerBytes) {
    return Broken(header.type, "it does not have as many layers as it says");
  }
  if (role != 1 && role != 2) return Broken(header.type, "its role is unknown");
  hello.role = static_cast<PdHello::Role>(role);
  const bool receiver = hello.role == PdHello::Role::kReceiver;
  if (conversion > (receiver ? 1 : 0)) return Broken(header.type, "its conversion can't be");
  hello.convert_at_receiver = conversion == 1;
  if (receiver ? hello.landing_slots < 1 || hello.landing_slots > kPdMaxLandingSlots
               : hello.landing_slots != 0) {
    return Broken(header.type, "its number of landing slots can't be");
  }
  if (hello.boot_nonce == 0) return Broken(header.type, "its boot nonce is zero");
  if (hello.page_tokens < 1 || hello.page_tokens > kMaxPageTokens ||
      !std::has_single_bit(hello.page_tokens)) {
    return Broken(header.type, "its page size can't be");
  }
  hello.layers.resize(layers);
  for (size_t i = 0; i < layers; ++i) {
    if (!GetLayer(in, &hello.layers[i])) {
      return Broken(header.type, fmt::format("layer {} can't be", i));
    }
  }
  return hello;
}

Result<PdEnd> DecodePdEnd(const PdHeader& header, std::span<const std::byte> body) {
  TERN_ASSIGN_OR_RETURN(const auto fields, CheckedMeta(header, body));
  ByteReader in(fields);
  const auto code = in.Get<uint16_t>();
  PdEnd end{.text = in.Text(kPdMaxTextBytes)};
  if (!in.done()) return Broken(header.type, "its text is not as long as it says");
  if (code < 1 || code > 15) return Broken(header.type, "its code is unknown");
  if (!IsValidUtf8(end.text)) return Broken(header.type, "its text is not UTF-8");
  end.code = static_cast<PdCode>(code);
  return end;
}

Result<PdRequest> DecodePdRequest(const PdHeader& header, std::span<const std::byte> body) {
  TERN_ASSIGN_OR_RETURN(const auto fields, CheckedMeta(header, body));
  ByteReader in(fields);
  PdRequest request;
  const auto digest = in.Bytes(32);
  std::copy(digest.begin(), digest.end(), request.prompt_digest.begin());
  request.prompt_tokens = in.Get<uint32_t>();
  const size_t pages = in.Get<uint32_t>();
  if (!in.ok() || pages < 1 || pages > kPdMaxPages || in.left() < 8 * pages) {
    return Broken(header.type, "it does not have as many pages as it says");
  }
  request.tags.resize(pages);
  const auto tags = in.Bytes(8 * pages);
  std::memcpy(request.tags.data(), tags.data(), tags.size());
  if (std::find(request.tags.begin(), request.tags.end(), 0u) != request.tags.end()) {
    return Broken(header.type, "a tag is zero");
  }
  const size_t tokens = in.Get<uint32_t>();
  if (!in.ok() || in.left() / 4 < tokens || (tokens != 0 && tokens != request.prompt_tokens)) {
    return Broken(header.type, "it does not have as many tokens as it says");
  }
  request.tokens.resize(tokens);
  const auto ids = in.Bytes(4 * tokens);
  if (tokens > 0) std::memcpy(request.tokens.data(), ids.data(), ids.size());
  request.cache_salt = in.Text(kPdMaxKeyBytes);
  request.extra_key = in.Text(kPdMaxKeyBytes);
  if (!in.done()) return Broken(header.type, "its keys are not as long as they say");
  if (request.prompt_tokens < 1 || (request.prompt_tokens + pages - 1) / pages > kMaxPageTokens) {
    return Broken(header.type, "its prompt does not fit its pages");
  }
  return request;
}

Result<PdLast> DecodePdLast(const PdHeader& header, std::span<const std::byte> body) {
  TERN_ASSIGN_OR_RETURN(const auto fields, CheckedMeta(header, body));
  ByteReader in(fields);
  PdLast last;
  const auto digest = in.Bytes(32);
  std::copy(digest.begin(), digest.end(), last.prompt_digest.begin());
  last.prompt_tokens = in.Get<uint32_t>();
  last.pages = in.Get<uint32_t>();
  last.first.token = in.Get<int32_t>();
  const auto flags = in.Get<uint32_t>();
  const auto logprob = in.Get<float>();
  last.first.cached_tokens = in.Get<uint32_t>();
  last.first.seed = in.Get<uint64_t>();
  last.first.position = in.Get<uint64_t>();
  const size_t top = in.Get<uint32_t>();
  if (!in.ok() || flags > 1 || top > kPdMaxTopLogprobs || in.left() != 8 * top) {
    return Broken(header.type, "its fields are not as many as it says");
  }
  if (flags == 1) last.first.logprob = logprob;
  for (size_t i = 0; i < top; ++i) {
    const auto token = in.Get<int32_t>();
    last.first.top_logprobs.emplace_back(token, in.Get<float>());
  }
  return last;
}

Result<PdPageBody> DecodePdPage(const PdHeader& header, std::span<const std::byte> body,
                                size_t layers) {
  const size_t meta = 8 * layers + kCheckBytes;
  if (body.size() < meta) return Broken(header.type, "its body is too short");
  TERN_ASSIGN_OR_RETURN(const auto fields, CheckedMeta(header, body.first(meta)));
  PdPageBody page{.payload = body.subspan(meta)};
  page.sums.resize(layers);
  if (layers > 0) std::memcpy(page.sums.data(), fields.data(), fields.size());
  return page;
}

}  // namespace tern
