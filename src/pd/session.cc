#include "pd/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace tern {
namespace {

constexpr size_t kSkipBytes = 64 << 10;
constexpr size_t kPageCheckBytes = 8;

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

void AppendMac(std::vector<std::byte>* frame, const Sha256Digest& mac) {
  frame->insert(frame->end(), mac.begin(), mac.end());
}
bool MacIs(std::span<const std::byte> mac, const Sha256Digest& expected) {
  return mac.size() == kPdMacBytes && EqualDigests(mac.first<kPdMacBytes>(), expected);
}

PdFrameType TypeOf(std::span<const std::byte> frame) {
  return static_cast<PdFrameType>(std::to_integer<uint8_t>(frame[6]));
}
uint32_t SlotOf(std::span<const std::byte> frame) {
  uint32_t slot = 0;
  std::memcpy(&slot, frame.data() + 40, sizeof(slot));
  return slot;
}

}  // namespace

bool SequenceWindow::Seen(uint64_t sequence) const {
  if (sequence > newest_) return false;
  const uint64_t age = newest_ - sequence;
  return age >= 64 || (seen_ >> age & 1) != 0;
}

void SequenceWindow::Mark(uint64_t sequence) {
  if (sequence > newest_) {
    const uint64_t by = sequence - newest_;
    seen_ = by >= 64 ? 0 : seen_ << by;
    newest_ = sequence;
  }
  if (newest_ - sequence < 64) seen_ |= uint64_t{1} << (newest_ - sequence);
}

PdSession::PdSession(const PdLinkOptions& options, PdRows rows, PdFrameFilter* filter,
                     int64_t now_us)
    : self_(options.self),
      rows_(std::move(rows)),
      secret_(options.secret),
      timeouts_(options.timeouts),
      filter_(filter),
      phase_(receiver() ? Phase::kWelcome : Phase::kHello),
      opened_us_(now_us),
      last_in_us_(now_us),
      last_out_us_(now_us),
      write_since_us_(now_us) {
  if (!receiver()) return;
  TERN_CHECK(filter_ != nullptr);
  hello_frame_ = EncodePdFrame({.type = PdFrameType::kHello, .has_mac = !secret_.empty()}, self_);
  if (!secret_.empty()) AppendMac(&hello_frame_, Sha256Digest{});
  Queue(hello_frame_, now_us);
}

// ---- Reading --------------------------------------------------------------------------------

std::span<std::byte> PdSession::ReadBuffer() {
  if (closed()) return {};
  switch (reading_) {
    case Reading::kHeader:
      return std::span(header_bytes_).subspan(got_);
    case Reading::kSlot:
      return std::span(slots_[header_.slot]).subspan(got_, body_want_ - got_);
    case Reading::kBody:
      return std::span(body_).subspan(got_, body_want_ - got_);
    case Reading::kSkip:
      break;
  }
  skip_.resize(kSkipBytes);
  return std::span(skip_).first(std::min(kSkipBytes, body_want_ - got_));
}

void PdSession::OnRead(size_t bytes, int64_t now_us) {
  if (closed() || bytes == 0) return;
  TERN_CHECK(bytes <= ReadBuffer().size());
  last_in_us_ = now_us;
  got_ += bytes;
  if (reading_ == Reading::kHeader) {
    if (got_ == kPdHeaderBytes) OnHeader(now_us);
  } else if (got_ == body_want_) {
    OnBody(now_us);
  }
}

void PdSession::OnHeader(int64_t now_us) {
  const Result<PdHeader> header = DecodePdHeader(header_bytes_);
  if (!header.ok()) {
    const bool version = header.status().code() == StatusCode::kUnimplemented;
    return Refuse(version ? PdCode::kOtherVersion : PdCode::kProtocol, header.status());
  }
  header_ = *header;
  PdCode code = PdCode::kProtocol;
  if (const Status status = open() ? CheckOpenHeader() : CheckHandshakeHeader(&code);
      !status.ok()) {
    return Refuse(code, status);
  }
  BeginBody(now_us);
}

Status PdSession::CheckHandshakeHeader(PdCode* code) const {
  if (header_.body_bytes > kPdMaxHandshakeBytes) {
    return DataLoss("the peer's handshake is too long");
  }
  if (header_.type == PdFrameType::kRefuse) return OkStatus();
  const PdFrameType due = phase_ == Phase::kHello     ? PdFrameType::kHello
                          : phase_ == Phase::kWelcome ? PdFrameType::kWelcome
                                                      : PdFrameType::kConfirm;
  if (header_.type != due) {
    return DataLoss(fmt::format("{} came where {} was due", PdFrameTypeName(header_.type),
                                PdFrameTypeName(due)));
  }
  if (header_.has_mac == secret_.empty()) {
    *code = PdCode::kSecret;
    return FailedPrecondition(
        secret_.empty() ? "the peer has a --disaggregation-secret-file, this worker has none"
                        : "this worker has a --disaggregation-secret-file, the peer has none");
  }
  return OkStatus();
}

Status PdSession::CheckOpenHeader() const {
  const PdFrameType type = header_.type;
  const bool for_receiver = type == PdFrameType::kPage || type == PdFrameType::kLast;
  const bool for_sender =
      type == PdFrameType::kRequest || type == PdFrameType::kAck || type == PdFrameType::kDone;
  const bool for_both = type == PdFrameType::kAbort || type == PdFrameType::kAbortAck ||
                        type == PdFrameType::kPing || type == PdFrameType::kRefuse;
  if (!for_both && !(receiver() ? for_receiver : for_sender)) {
    return DataLoss(fmt::format("{} came to the wrong side", PdFrameTypeName(type)));
  }
  if (header_.has_mac == secret_.empty()) {
    return DataLoss(fmt::format("{} has a mac, or has none", PdFrameTypeName(type)));
  }
  if (header_.body_bytes > self_.max_body_bytes) {
    return DataLoss(fmt::format("{} of {} bytes, the limit is {}", PdFrameTypeName(type),
                                header_.body_bytes, self_.max_body_bytes));
  }
  if (type != PdFrameType::kPage) return OkStatus();
  const PageFormat& format = wire_rows_->format;
  const auto body =
      static_cast<uint64_t>(8 * format.layers() + PayloadBytes(format, header_.rows)) +
      kPageCheckBytes;
  if (header_.slot >= self_.landing_slots || header_.rows > format.page_tokens() ||
      header_.format != static_cast<uint8_t>(format.format()) || header_.body_bytes != body) {
    return DataLoss("PAGE has a slot, rows, format or length that was not agreed on");
  }
  return OkStatus();
}

void PdSession::BeginBody(int64_t now_us) {
  got_ = 0;
  body_want_ = header_.body_bytes + (header_.has_mac ? kPdMacBytes : 0);
  duplicate_ = open() && in_window_.Seen(header_.sequence);
  unwanted_ = false;
  reading_ = Reading::kBody;
  if (header_.type == PdFrameType::kPage && !duplicate_) {
    unwanted_ = !filter_->Wants(header_);
    if (!unwanted_) {
      if (slot_busy_[header_.slot]) {
        return Refuse(PdCode::kProtocol, DataLoss("PAGE in a landing slot that is in use"));
      }
      reading_ = Reading::kSlot;
      if (slots_[header_.slot].size() < body_want_) slots_[header_.slot].resize(body_want_);
    }
  }
  // What is read over is kept only as long as its mac needs it.
  if ((duplicate_ || unwanted_) && !header_.has_mac) reading_ = Reading::kSkip;
  if (reading_ == Reading::kBody) body_.assign(body_want_, std::byte{0});
  if (body_want_ == 0) OnBody(now_us);
}

void PdSession::OnBody(int64_t now_us) {
  const Reading reading = std::exchange(reading_, Reading::kHeader);
  got_ = 0;
  const auto all = reading == Reading::kSlot   ? std::span(slots_[header_.slot]).first(body_want_)
                   : reading == Reading::kBody ? std::span(body_)
                                               : std::span<std::byte>();
  const auto body = all.first(std::min<size_t>(header_.body_bytes, all.size()));
  const auto mac = all.subspan(body.size());
  if (!open()) return OnHandshakeBody(body, mac, now_us);
  if (header_.has_mac && !MacIs(mac, HmacSha256(in_key_, {header_bytes_, body}))) {
    return Refuse(PdCode::kSecret,
                  DataLoss(fmt::format("{} has a wrong mac", PdFrameTypeName(header_.type))));
  }
  if (duplicate_) {
    ++stats_.duplicate_frames;
    return;
  }
  in_window_.Mark(header_.sequence);
  if (unwanted_) {
    ++stats_.dropped_frames;
    return AcknowledgeDropped(now_us);
  }
  if (header_.type == PdFrameType::kPing) return;
  if (header_.type == PdFrameType::kRefuse) {
    const Result<PdEnd> end = DecodePdEnd(header_, body);
    return Close(end.ok() ? StatusOf(*end) : end.status());
  }
  PdIncoming incoming{.header = header_};
  if (reading == Reading::kSlot) {
    slot_busy_[header_.slot] = true;
    incoming.landed = body;
  } else {
    incoming.bytes.assign(body.begin(), body.end());
  }
  incoming_.push_back(std::move(incoming));
}

void PdSession::AcknowledgeDropped(int64_t now_us) {
  Send(EncodePdFrame({.type = PdFrameType::kAck,
                      .generation = header_.generation,
                      .room = header_.room,
                      .slot = header_.slot,
                      .page = header_.page}),
       now_us);
}

// ---- Handshake ------------------------------------------------------------------------------

void PdSession::OnHandshakeBody(std::span<const std::byte> body, std::span<const std::byte> mac,
                                int64_t now_us) {
  if (header_.type == PdFrameType::kRefuse) {
    const Result<PdEnd> end = DecodePdEnd(header_, body);
    refused_ = true;
    return Close(end.ok() ? StatusOf(*end).WithContext("the peer refuses") : end.status());
  }
  std::vector<std::byte> frame(header_bytes_.begin(), header_bytes_.end());
  frame.insert(frame.end(), body.begin(), body.end());
  if (phase_ == Phase::kConfirm) {
    if (!secret_.empty() && !MacIs(mac, ConfirmMac(frame))) {
      return Refuse(PdCode::kSecret, FailedPrecondition("the peer's secret is another one"));
    }
    return BecomeOpen();
  }
  if (phase_ == Phase::kWelcome && !secret_.empty() && !MacIs(mac, WelcomeMac(frame))) {
    return Refuse(PdCode::kSecret, FailedPrecondition("the peer's secret is another one"));
  }
  Result<PdHello> hello = DecodePdHello(header_, body);
  if (!hello.ok()) return Refuse(PdCode::kProtocol, hello.status());
  peer_ = std::move(hello).value();
  PdCode code = PdCode::kProtocol;
  if (const Status status = CheckPeer(&code); !status.ok()) return Refuse(code, status);
  frame.insert(frame.end(), mac.begin(), mac.end());
  if (phase_ == Phase::kHello) {
    hello_frame_ = std::move(frame);
    SendWelcome(now_us);
    phase_ = Phase::kConfirm;
  } else {
    welcome_frame_ = std::move(frame);
    SendConfirm(now_us);
    BecomeOpen();
  }
}

Status PdSession::CheckPeer(PdCode* code) {
  if (peer_.role == self_.role) {
    return FailedPrecondition(receiver() ? "the peer is no prefill worker"
                                         : "the peer is no decode worker");
  }
  if (peer_.model_id != self_.model_id) {
    *code = PdCode::kOtherModel;
    return FailedPrecondition("prefill and decode worker serve different models");
  }
  *code = PdCode::kOtherRows;
  TERN_ASSIGN_OR_RETURN(PdRows theirs, RowsOf(peer_));
  const PdHello& decode = receiver() ? self_ : peer_;
  TERN_ASSIGN_OR_RETURN(wire_rows_, receiver()
                                        ? NegotiateRows(theirs, rows_, decode.convert_at_receiver)
                                        : NegotiateRows(rows_, theirs, decode.convert_at_receiver));
  const PageFormat& format = wire_rows_->format;
  const auto largest = static_cast<uint64_t>(8 * format.layers()) + kPageCheckBytes +
                       static_cast<uint64_t>(PayloadBytes(format, format.page_tokens()));
  if (largest > decode.max_body_bytes) {
    return FailedPrecondition(fmt::format("a page is {} bytes, the decode worker takes {} at most",
                                          largest, decode.max_body_bytes));
  }
  return OkStatus();
}

Sha256Digest PdSession::WelcomeMac(std::span<const std::byte> welcome) const {
  return HmacSha256(Bytes(secret_), {Bytes("tern pd welcome 1"), hello_frame_, welcome});
}

Sha256Digest PdSession::ConfirmMac(std::span<const std::byte> confirm) const {
  return HmacSha256(Bytes(secret_),
                    {Bytes("tern pd confirm 1"), hello_frame_, welcome_frame_, confirm});
}

void PdSession::SendWelcome(int64_t now_us) {
  welcome_frame_ =
      EncodePdFrame({.type = PdFrameType::kWelcome, .has_mac = !secret_.empty()}, self_);
  if (!secret_.empty()) AppendMac(&welcome_frame_, WelcomeMac(welcome_frame_));
  Queue(welcome_frame_, now_us);
}

void PdSession::SendConfirm(int64_t now_us) {
  std::vector<std::byte> frame =
      EncodePdFrame({.type = PdFrameType::kConfirm, .has_mac = !secret_.empty()});
  if (!secret_.empty()) AppendMac(&frame, ConfirmMac(frame));
  Queue(std::move(frame), now_us);
}

void PdSession::BecomeOpen() {
  phase_ = Phase::kOpen;
  const PdHello& hello = receiver() ? self_ : peer_;
  const PdHello& welcome = receiver() ? peer_ : self_;
  const auto key = [&](char direction) {
    return HmacSha256(Bytes(secret_),
                      {Bytes("tern pd frames 1"), Bytes(std::string_view(&direction, 1)),
                       hello.nonce, welcome.nonce});
  };
  if (!secret_.empty()) {
    const Sha256Digest from_receiver = key('\1'), from_sender = key('\2');
    out_key_ = receiver() ? from_receiver : from_sender;
    in_key_ = receiver() ? from_sender : from_receiver;
  }
  if (receiver()) {
    slots_.resize(self_.landing_slots);
    slot_busy_.resize(self_.landing_slots);
  }
  incoming_.push_back({.kind = PdEvent::Kind::kOpen});
}

// ---- Writing and the end --------------------------------------------------------------------

void PdSession::Queue(std::vector<std::byte> frame, int64_t now_us) {
  if (output_.empty()) write_since_us_ = now_us;
  last_out_us_ = now_us;
  output_.push_back(std::move(frame));
}

void PdSession::Send(std::vector<std::byte> frame, int64_t now_us) {
  if (!open()) return;
  if (receiver() && TypeOf(frame) == PdFrameType::kAck) slot_busy_[SlotOf(frame)] = false;
  StampPdFrame(frame, ++out_sequence_, !secret_.empty(),
               static_cast<size_t>(wire_rows_->format.layers()));
  if (!secret_.empty()) AppendMac(&frame, HmacSha256(out_key_, {frame}));
  Queue(std::move(frame), now_us);
}

std::span<const std::byte> PdSession::Output() {
  if (output_.empty()) return {};
  lent_ = true;
  return std::span(output_.front()).subspan(written_);
}

void PdSession::OnWritten(size_t bytes, int64_t now_us) {
  lent_ = false;
  last_lent_ = {};
  if (output_.empty()) return;
  write_since_us_ = now_us;
  written_ += bytes;
  TERN_CHECK(written_ <= output_.front().size());
  if (written_ < output_.front().size()) return;
  output_.pop_front();
  written_ = 0;
}

bool PdSession::Poll(PdIncoming* incoming) {
  if (incoming_.empty()) return false;
  *incoming = std::move(incoming_.front());
  incoming_.pop_front();
  return true;
}

void PdSession::Refuse(PdCode code, const Status& why) {
  if (closed()) return;
  refused_ = !open();
  lingers_ = true;
  std::vector<std::byte> frame =
      EncodePdFrame({.type = PdFrameType::kRefuse}, PdEnd{code, why.message()});
  // Only the frame whose writing has begun, if one's has, and then this.
  while (output_.size() > (lent_ || written_ > 0 ? 1u : 0u)) output_.pop_back();
  if (open()) {
    Send(std::move(frame), last_in_us_);
  } else {
    output_.push_back(std::move(frame));
  }
  Close({StatusCodeOf(code), why.message()});
}

void PdSession::Close(Status why) {
  if (closed()) return;
  phase_ = Phase::kClosed;
  incoming_.push_back({.kind = PdEvent::Kind::kClosed, .status = std::move(why)});
}

void PdSession::OnClosed(Status why) {
  if (lent_ && !output_.empty()) last_lent_ = std::move(output_.front());
  output_.clear();
  written_ = 0;
  lingers_ = false;
  Close(std::move(why));
}

void PdSession::OnTime(int64_t now_us) {
  if (closed()) return;
  const auto late = [](std::string what) { return Status(StatusCode::kDeadlineExceeded, what); };
  if (!open()) {
    if (now_us >= opened_us_ + timeouts_.handshake_us) {
      refused_ = true;
      OnClosed(late("the peer did not finish its handshake in time"));
    }
    return;
  }
  if (!output_.empty() && now_us >= write_since_us_ + timeouts_.write_us) {
    return OnClosed(late("the peer takes no data"));
  }
  if (now_us >= last_in_us_ + timeouts_.heartbeat_us * timeouts_.heartbeat_failures) {
    return OnClosed(late("nothing has come from the peer for too long"));
  }
  if (now_us >= last_out_us_ + timeouts_.heartbeat_us) {
    Send(EncodePdFrame({.type = PdFrameType::kPing}), now_us);
  }
}

int64_t PdSession::NextDeadlineUs() const {
  if (closed()) return INT64_MAX;
  if (!open()) return opened_us_ + timeouts_.handshake_us;
  int64_t next = std::min(last_in_us_ + timeouts_.heartbeat_us * timeouts_.heartbeat_failures,
                          last_out_us_ + timeouts_.heartbeat_us);
  if (!output_.empty()) next = std::min(next, write_since_us_ + timeouts_.write_us);
  return next;
}

}  // namespace tern
