#include "text/byte_level_tokenizer.h"

#include <fmt/format.h>

#include <limits>
#include <unordered_map>

#include "base/utf8.h"
#include "text/added_tokens.h"
#include "text/byte_alphabet.h"

namespace tern {
namespace {

// A token's text for a message: short and printable.
std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 40;
  if (text.size() <= kShown) return fmt::format("'{}'", ReplaceInvalidUtf8(text));
  return fmt::format("'{}...'", ReplaceInvalidUtf8(text.substr(0, kShown)));
}

class ByteLevelTokenizer final : public Tokenizer {
 public:
  explicit ByteLevelTokenizer(TokenizerParts parts);

  std::vector<TokenId> Encode(std::string_view text, bool parse_special) const override;
  std::vector<TokenId> EncodeDisguised(std::string_view text,
                                       const Disguise& disguise) const override;
  std::vector<std::string> AddedTexts() const override { return added_texts_; }
  std::string_view TokenBytes(TokenId id) const override {
    return Has(id) ? std::string_view(bytes_[static_cast<size_t>(id)]) : std::string_view();
  }
  bool IsSpecial(TokenId id) const override { return Has(id) && special_[static_cast<size_t>(id)]; }
  std::optional<TokenId> IdOf(std::string_view token_text) const override {
    const TokenId id = ids_.Find(token_text);
    return id == TokenTable::kNone ? std::nullopt : std::optional(id);
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(bytes_.size()); }
  std::optional<TokenId> bos() const override { return bos_; }
  std::optional<TokenId> eos() const override { return eos_; }
  const PromptFrame& frame() const override { return frame_; }

 private:
  bool Has(TokenId id) const { return id >= 0 && static_cast<size_t>(id) < bytes_.size(); }
  void EncodePlain(std::string_view text, std::vector<TokenId>* ids) const;
  // Text between added tokens that are matched before normalization.
  // `disguise` may be null.
  void EncodeSegment(std::string_view text, const Disguise* disguise,
                     std::vector<TokenId>* ids) const;
  std::vector<TokenId> EncodeSegments(std::string_view text, const Disguise* disguise) const;

  std::vector<std::string> bytes_;  // by id; before what points into it
  std::vector<bool> special_;
  TokenTable ids_;
  std::optional<Bpe> bpe_;
  PreTokenizer pre_tokenizer_;
  NormalizationForm normalization_;
  AddedTokenMatcher added_, added_normalized_;
  std::vector<std::string> added_texts_;
  std::optional<TokenId> bos_, eos_;
  const PromptFrame frame_;
};

ByteLevelTokenizer::ByteLevelTokenizer(TokenizerParts parts)
    : special_(parts.tokens.size()),
      pre_tokenizer_(std::move(parts.pre_tokenizer)),
      normalization_(parts.normalization),
      bos_(parts.bos),
      eos_(parts.eos),
      frame_(std::move(parts.frame)) {
  for (const auto& token : parts.tokens) {
    bytes_.push_back(token ? std::move(token->bytes) : std::string());
  }
  ids_.Reserve(bytes_.size());
  for (AddedToken& token : parts.added) {
    const auto id = static_cast<size_t>(token.id);
    bytes_[id] = token.content;
    special_[id] = token.special;
    ids_.Insert(bytes_[id], token.id);
    added_texts_.push_back(token.content);
    if (token.normalized) {
      token.content = Normalize(token.content, normalization_);
      added_normalized_.Add(token);
    } else {
      added_.Add(token);
    }
  }
  Bpe::Vocabulary vocabulary(bytes_.size());
  for (size_t id = 0; id < bytes_.size(); ++id) {
    if (!bytes_[id].empty()) ids_.Insert(bytes_[id], static_cast<TokenId>(id));
    if (parts.tokens[id] && parts.tokens[id]->plain && !special_[id]) vocabulary[id] = bytes_[id];
  }
  bpe_.emplace(vocabulary, parts.merges, parts.bpe);
}

void ByteLevelTokenizer::EncodePlain(std::string_view text, std::vector<TokenId>* ids) const {
  struct BpeSink : PreTokenizer::Sink {
    BpeSink(const Bpe& b, std::vector<TokenId>* out) : bpe(b), ids(out) {}
    void Piece(std::string_view piece) override { bpe.Encode(piece, ids); }
    const Bpe& bpe;
    std::vector<TokenId>* const ids;
  } sink(*bpe_, ids);
  pre_tokenizer_.Split(text, &sink);
}

void ByteLevelTokenizer::EncodeSegment(std::string_view text, const Disguise* disguise,
                                       std::vector<TokenId>* ids) const {
  std::string normalized;
  if (normalization_ != NormalizationForm::kNone) {
    normalized = Normalize(text, normalization_);
    text = normalized;
  }
  const auto encode_plain = [&](std::string_view plain) {
    if (disguise == nullptr) return EncodePlain(plain, ids);
    EncodePlain(disguise->Undo(plain), ids);
  };
  if (added_normalized_.empty()) return encode_plain(text);
  for (const auto& segment : added_normalized_.Split(text)) {
    if (segment.token >= 0) {
      ids->push_back(segment.token);
    } else {
      encode_plain(segment.text);
    }
  }
}

std::vector<TokenId> ByteLevelTokenizer::EncodeSegments(std::string_view text,
                                                        const Disguise* disguise) const {
  std::vector<TokenId> ids;
  for (const auto& segment : added_.Split(text)) {
    if (segment.token >= 0) {
      ids.push_back(segment.token);
    } else {
      EncodeSegment(segment.text, disguise, &ids);
    }
  }
  return ids;
}

std::vector<TokenId> ByteLevelTokenizer::Encode(std::string_view text, bool parse_special) const {
  if (!parse_special) {
    std::vector<TokenId> ids;
    if (normalization_ == NormalizationForm::kNone) {
      EncodePlain(text, &ids);
    } else {
      EncodePlain(Normalize(text, normalization_), &ids);
    }
    return ids;
  }
  return EncodeSegments(text, nullptr);
}

std::vector<TokenId> ByteLevelTokenizer::EncodeDisguised(std::string_view text,
                                                         const Disguise& disguise) const {
  return EncodeSegments(text, disguise.empty() ? nullptr : &disguise);
}

// `count`: tokens in the file.
bool InRange(int64_t id, size_t count) {
  const int64_t limit = 2 * static_cast<int64_t>(count) + kMaxUnusedIds;
  return id >= 0 && id < std::min<int64_t>(limit, std::numeric_limits<TokenId>::max());
}

Status OutOfRange(std::string_view where, int64_t id, size_t count) {
  return InvalidArgument(
      fmt::format("{}: the id {} is out of range for {} tokens", where, id, count));
}

Status AddAddedTokens(TokenizerParts* parts) {
  std::unordered_map<std::string_view, size_t> index_of;
  std::unordered_map<TokenId, size_t> index_of_id;
  size_t count = parts->added.size();
  for (const auto& token : parts->tokens) count += token ? 1 : 0;
  for (size_t i = 0; i < parts->added.size(); ++i) {
    const AddedToken& token = parts->added[i];
    const std::string where = fmt::format("added_tokens[{}] {}", i, Quoted(token.content));
    if (!InRange(token.id, count)) return OutOfRange(where, token.id, count);
    if (token.content.empty() || token.content.size() > AddedTokenMatcher::kMaxContentBytes) {
      return InvalidArgument(fmt::format("{}: content must have 1 to {} bytes", where,
                                         AddedTokenMatcher::kMaxContentBytes));
    }
    if (!IsValidUtf8(token.content)) {
      return InvalidArgument(fmt::format("{}: content is not UTF-8", where));
    }
    if (const auto [it, added] = index_of.emplace(token.content, i); !added) {
      return InvalidArgument(fmt::format("{}: added_tokens[{}] is the same", where, it->second));
    }
    if (const auto [it, added] = index_of_id.emplace(token.id, i); !added) {
      return InvalidArgument(
          fmt::format("{}: added_tokens[{}] has the id {} too", where, it->second, token.id));
    }
    const auto id = static_cast<size_t>(token.id);
    if (id >= parts->tokens.size()) parts->tokens.resize(id + 1);
    std::optional<TokenizerParts::Token>& slot = parts->tokens[id];
    if (slot && slot->text != token.content) {
      return InvalidArgument(fmt::format("{}: the vocabulary has {} for the id {}", where,
                                         Quoted(slot->text), token.id));
    }
    if (!slot) slot = TokenizerParts::Token{token.content, token.content, false};
  }
  return OkStatus();
}

}  // namespace

Status FillVocabulary(const std::vector<std::pair<std::string_view, int64_t>>& vocabulary,
                      size_t other_tokens, std::string_view field, TokenizerParts* parts) {
  std::unordered_map<std::string_view, int64_t> seen;
  seen.reserve(vocabulary.size());
  const size_t count = vocabulary.size() + other_tokens;
  for (const auto& [text, id] : vocabulary) {
    const auto where = [&, text = text] { return fmt::format("{}[{}]", field, Quoted(text)); };
    if (!InRange(id, count)) return OutOfRange(where(), id, count);
    if (const auto [it, added] = seen.emplace(text, id); !added) {
      return InvalidArgument(
          fmt::format("{} is there twice, with the ids {} and {}", where(), it->second, id));
    }
    const auto index = static_cast<size_t>(id);
    if (index >= parts->tokens.size()) parts->tokens.resize(index + 1);
    std::optional<TokenizerParts::Token>& slot = parts->tokens[index];
    if (slot) {
      return InvalidArgument(
          fmt::format("{} and {} have the same id {}", where(), Quoted(slot->text), id));
    }
    slot.emplace();
    slot->text = text;
    slot->plain = DecodeByteAlphabet(text, &slot->bytes);
  }
  return OkStatus();
}

Status FillMerges(const std::vector<std::pair<std::string_view, std::string_view>>& merges,
                  std::string_view field, TokenizerParts* parts) {
  TokenTable ids;
  ids.Reserve(parts->tokens.size());
  for (size_t id = 0; id < parts->tokens.size(); ++id) {
    if (parts->tokens[id]) ids.Insert(parts->tokens[id]->text, static_cast<TokenId>(id));
  }
  parts->merges.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const std::string both = std::string(left) + std::string(right);
    std::array<TokenId, 3> found;
    const std::string_view texts[] = {left, right, both};
    for (size_t i = 0; i < 3; ++i) {
      found[i] = ids.Find(texts[i]);
      if (found[i] == TokenTable::kNone) {
        return InvalidArgument(
            fmt::format("{}[{}]: {} is not in the vocabulary", field, rank, Quoted(texts[i])));
      }
    }
    parts->merges.push_back({found[0], found[1], found[2], static_cast<uint32_t>(rank)});
  }
  return OkStatus();
}

Result<std::shared_ptr<const Tokenizer>> MakeByteLevelTokenizer(TokenizerParts parts) {
  TERN_RETURN_IF_ERROR(AddAddedTokens(&parts));
  const auto check = [&](const std::optional<TokenId>& id, std::string_view name) {
    if (!id || (*id >= 0 && static_cast<size_t>(*id) < parts.tokens.size() &&
                parts.tokens[static_cast<size_t>(*id)])) {
      return OkStatus();
    }
    return InvalidArgument(fmt::format("{} {} is not in the vocabulary", name, *id));
  };
  TERN_RETURN_IF_ERROR(check(parts.bos, "the BOS token"));
  TERN_RETURN_IF_ERROR(check(parts.eos, "the EOS token"));
  TERN_RETURN_IF_ERROR(check(parts.bpe.unk, "the unknown token"));
  for (const auto* ids : {&parts.frame.before, &parts.frame.after}) {
    for (const TokenId id : *ids) TERN_RETURN_IF_ERROR(check(id, "the post-processor's token"));
  }
  return std::shared_ptr<const Tokenizer>(std::make_shared<ByteLevelTokenizer>(std::move(parts)));
}

}  // namespace tern
