// Tokenizer: text to token ids and back, byte-level BPE.
// Made once at start from a tokenizer.json or from GGUF metadata; immutable afterwards.
// Thread: all const methods may be called from any thread at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/disguise.h"

namespace tern {

using TokenId = int32_t;

// A token that is matched in the text before the pre-tokenizer sees it.
struct AddedToken {
  TokenId id = 0;
  std::string content;  // UTF-8
  bool special = false;
  bool lstrip = false, rstrip = false, single_word = false, normalized = false;
};

// What a tokenizer's file puts around a text that is a prompt by itself: a BOS in front, mostly.
struct PromptFrame {
  std::vector<TokenId> before, after;
};

// A tokenizer independent of the file it came from. `cmd` fills it from GGUF metadata (text may not
// include checkpoint); FromTokenizerJson fills it from JSON.
struct TokenizerSpec {
  std::vector<std::string> vocab;   // by id, in GPT-2's printable byte alphabet ("Gcaron" = space)
  std::vector<std::string> merges;  // "left right", best first, same alphabet
  std::vector<AddedToken> added;
  // A name ("smollm", "gpt2", "llama-bpe", "qwen2", ... as GGUF's tokenizer.ggml.pre).
  std::string pre_tokenizer;
  bool ignore_merges = false;  // a whole piece that is in the vocabulary is one token
  bool add_prefix_space = false;
  std::optional<TokenId> bos, eos;
  PromptFrame frame;
};

class Tokenizer {
 public:
  // Errors: kInvalidArgument naming the field (duplicate ids, merges of unknown tokens, ...);
  // kUnimplemented naming a pre-tokenizer, normalizer or model type that tern can't do.
  static Result<std::shared_ptr<const Tokenizer>> FromSpec(TokenizerSpec spec);
  // `json`: the bytes of tokenizer.json; `config_json`: of tokenizer_config.json, may be empty.
  static Result<std::shared_ptr<const Tokenizer>> FromTokenizerJson(std::string_view json,
                                                                    std::string_view config_json);
  // `model`: the bytes of tiktoken.model, cut by Kimi's pattern; added tokens come from
  // `config_json`, and ids without one, up to 256 past the model's, are <|reserved_token_ID|>.
  static Result<std::shared_ptr<const Tokenizer>> FromTiktoken(std::string_view model,
                                                               std::string_view config_json);
  virtual ~Tokenizer() = default;

  // Ids of `text` without a frame: chat templates write their own BOS. parse_special: added and
  // special tokens in the text become their ids; otherwise all text is plain. Invalid UTF-8 is
  // encoded byte by byte.
  virtual std::vector<TokenId> Encode(std::string_view text, bool parse_special = true) const = 0;
  // Ids of `text`, special tokens parsed, in frame(): what `tokenizers` gives with its
  // add_special_tokens, for prompts that no template has made.
  std::vector<TokenId> EncodeFramed(std::string_view text) const;
  virtual const PromptFrame& frame() const;
  // Ids of `text` as it is without its disguise, but no added token begins at a disguised
  // character.
  virtual std::vector<TokenId> EncodeDisguised(std::string_view text,
                                               const Disguise& disguise) const {
    return Encode(disguise.Undo(text));
  }
  // The texts that Encode takes for added tokens, special or not.
  virtual std::vector<std::string> AddedTexts() const { return {}; }
  // The exact bytes of a token (special tokens: their text); empty for an unknown id.
  virtual std::string_view TokenBytes(TokenId id) const = 0;
  virtual bool IsSpecial(TokenId id) const = 0;
  // The token whose bytes, as TokenBytes gives them, are `token_text`; added tokens come first.
  virtual std::optional<TokenId> IdOf(std::string_view token_text) const = 0;
  // One more than the largest id.
  virtual int64_t vocab_size() const = 0;
  virtual std::optional<TokenId> bos() const = 0;
  virtual std::optional<TokenId> eos() const = 0;

  // Concatenated token bytes, possibly not valid UTF-8.
  std::string Decode(std::span<const TokenId> ids, bool skip_special) const;
};

}  // namespace tern
