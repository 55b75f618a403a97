#include "sim/toy_model.h"

#include <cstring>
#include <limits>

#include "base/rng.h"

namespace tern {
namespace {

constexpr int64_t kLayers = 2;

uint64_t CheckOf(uint64_t value) { return Mix64(value ^ 0x5555555555555555); }

// visit(where it lies, where it begins in the row, bytes) of each part of a row of 16 bytes.
template <typename Fn>
void ForEachPart(const KvView& kv, int64_t layer, int64_t position, const Fn& visit) {
  const int64_t page_tokens = kv.format->page_tokens(), row = position % page_tokens;
  std::byte* const page = kv.pages[static_cast<size_t>(position / page_tokens)];
  size_t at = 0;
  for (const KvRowPart& part : kv.format->row_parts(layer)) {
    const auto bytes = static_cast<size_t>(part.row_bytes);
    visit(page + part.offset_bytes + row * part.row_bytes, at, bytes);
    at += bytes;
  }
}

}  // namespace

uint64_t ToyInput(const ToyOptions& options, int32_t token) {
  return static_cast<uint64_t>(options.weights) << 32 | static_cast<uint32_t>(token);
}

uint64_t ToyRow(int64_t layer, uint64_t input, int64_t position, RowForm form) {
  const uint64_t place =
      static_cast<uint64_t>(position * 4 + layer * 2) + (form == RowForm::kDecode ? 1 : 0);
  return Mix64(Mix64(input + 1) + Mix64(place + 0x1234567));
}

uint64_t ToyFold(uint64_t digest, uint64_t row) { return Mix64(digest * 3 + row); }

float ToyLogit(uint64_t digest, int32_t token) {
  const uint64_t bits = Mix64(digest + 0x9E3779B97F4A7C15u * static_cast<uint64_t>(token + 1));
  return static_cast<float>(bits >> 40) * 0x1.0p-21f;  // [0, 8)
}

ToyModel::ToyModel(ToyOptions options) : options_(options) {
  const KvLayerSpec gqa = {.kind = KvLayerSpec::Kind::kGqa, .kv_heads = 1, .head_dim = 4};
  const KvLayerSpec mla = {.kind = KvLayerSpec::Kind::kMla, .latent = 4, .rope = 4};
  info_.architecture = "ToyModel";
  info_.model_type = "toy";
  info_.vocab_size = options.vocab_size;
  info_.context_length = options.context_length;
  info_.kv_layers.assign(kLayers, options.two_forms ? mla : gqa);
  info_.eos_token_ids = {options.eos_token};
}

Status ToyModel::Forward(const ForwardBatch& batch, float* logits) {
  if (!failure_.ok()) return failure_;
  for (const int32_t token : batch.tokens) {
    if (token < 0 || token >= options_.vocab_size) return InvalidArgument("token out of range");
  }
  const auto form = [&](const ForwardRun& run) {
    return options_.two_forms ? run.form : RowForm::kPrefill;
  };
  // Layer by layer over the whole batch, as real models go.
  for (const ForwardRun& run : batch.runs) {
    for (int64_t i = 0; i < run.rows; ++i) {
      const int64_t position = run.first_position + i;
      const int32_t token = batch.tokens[static_cast<size_t>(run.first_row + i)];
      Write(run.kv, 0, position, ToyRow(0, ToyInput(options_, token), position, form(run)));
    }
  }
  for (const ForwardRun& run : batch.runs) {
    for (int64_t i = 0; i < run.rows; ++i) {
      const int64_t position = run.first_position + i;
      Write(run.kv, 1, position, ToyRow(1, Digest(run.kv, 0, position), position, form(run)));
    }
  }
  for (const int32_t row : batch.logit_rows) {
    const ForwardRun* run = batch.runs.data();
    while (row >= run->first_row + run->rows) ++run;
    const int64_t position = run->first_position + row - run->first_row;
    const uint64_t digest = Digest(run->kv, 1, position);
    const bool poisoned =
        poison_ >= 0 &&
        Read(run->kv, 0, 0) == ToyRow(0, ToyInput(options_, poison_), 0, RowForm::kPrefill);
    for (int32_t token = 0; token < options_.vocab_size; ++token) {
      *logits++ = poisoned ? std::numeric_limits<float>::quiet_NaN() : ToyLogit(digest, token);
    }
  }
  return OkStatus();
}

// Value and check are the bytes of one row, wherever the page's format has its parts.
void ToyModel::Write(const KvView& kv, int64_t layer, int64_t position, uint64_t value) const {
  const uint64_t halves[2] = {value, CheckOf(value)};
  ForEachPart(kv, layer, position, [&](std::byte* part, size_t at, size_t bytes) {
    std::memcpy(part, reinterpret_cast<const std::byte*>(halves) + at, bytes);
  });
}

uint64_t ToyModel::Read(const KvView& kv, int64_t layer, int64_t position) const {
  uint64_t halves[2] = {};
  ForEachPart(kv, layer, position, [&](const std::byte* part, size_t at, size_t bytes) {
    std::memcpy(reinterpret_cast<std::byte*>(halves) + at, part, bytes);
  });
  const auto [value, check] = halves;
  return check == CheckOf(value) ? value : ~value ^ check;  // damage shows in the result
}

uint64_t ToyModel::Digest(const KvView& kv, int64_t layer, int64_t position) const {
  uint64_t digest = 0;
  for (int64_t p = 0; p <= position; ++p) digest = ToyFold(digest, Read(kv, layer, p));
  return digest;
}

}  // namespace tern
