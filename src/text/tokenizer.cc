#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "text/byte_level_tokenizer.h"

namespace tern {
namespace {

// GGUF has no key for what the tokenizer.json of these models says.
bool IgnoresMerges(std::string_view pre_tokenizer) {
  constexpr std::string_view kNames[] = {"llama-bpe", "llama3",      "llama-v3",
                                         "glm4",      "chatglm-bpe", "kimi-k2"};
  return std::find(std::begin(kNames), std::end(kNames), pre_tokenizer) != std::end(kNames);
}

}  // namespace

std::vector<TokenId> Tokenizer::EncodeFramed(std::string_view text) const {
  std::vector<TokenId> ids = frame().before;
  const std::vector<TokenId> inner = Encode(text);
  ids.insert(ids.end(), inner.begin(), inner.end());
  ids.insert(ids.end(), frame().after.begin(), frame().after.end());
  return ids;
}

const PromptFrame& Tokenizer::frame() const {
  static const PromptFrame kNone;
  return kNone;
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (skip_special && IsSpecial(id)) continue;
    bytes += TokenBytes(id);
  }
  return bytes;
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::FromSpec(TokenizerSpec spec) {
  TokenizerParts parts;
  std::vector<std::pair<std::string_view, int64_t>> vocabulary;
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    vocabulary.emplace_back(spec.vocab[id], static_cast<int64_t>(id));
  }
  TERN_RETURN_IF_ERROR(FillVocabulary(vocabulary, spec.added.size(), "vocab", &parts));
  std::vector<std::pair<std::string_view, std::string_view>> merges;
  for (const std::string_view merge : spec.merges) {
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos) {
      return InvalidArgument(
          fmt::format("merges[{}] must be two tokens with a space between", merges.size()));
    }
    merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  TERN_RETURN_IF_ERROR(FillMerges(merges, "merges", &parts));
  if (spec.add_prefix_space) TERN_RETURN_IF_ERROR(parts.pre_tokenizer.AddPrefixSpace());
  TERN_RETURN_IF_ERROR(parts.pre_tokenizer.AddNamed(spec.pre_tokenizer));
  parts.bpe.ignore_merges = spec.ignore_merges || IgnoresMerges(spec.pre_tokenizer);
  if (spec.pre_tokenizer == "qwen2") parts.normalization = NormalizationForm::kNfc;
  parts.added = std::move(spec.added);
  parts.bos = spec.bos;
  parts.eos = spec.eos;
  parts.frame = std::move(spec.frame);
  return MakeByteLevelTokenizer(std::move(parts));
}

}  // namespace tern
