// Tokenizer::FromTokenizerJson: HuggingFace's tokenizer.json, as far as it is byte-level BPE.
// Read with simdjson: these files have hundreds of thousands of entries.
#include <fmt/format.h>
#include <simdjson.h>

#include <limits>
#include <utility>

#include "base/json.h"
#include "text/byte_level_tokenizer.h"
#include "text/tokenizer_config.h"

namespace tern {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

// That a post-processor may add to every prompt.
constexpr size_t kMaxFrameTokens = 64;

// A member of an object; nullopt when it is absent or null.
std::optional<element> Member(const object& parent, std::string_view key) {
  element value;
  if (parent.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

Status WrongType(std::string_view where, std::string_view key, std::string_view type) {
  return InvalidArgument(fmt::format("{}.{} must be {}", where, key, type));
}

// Absent and null give `fallback`.
template <typename T>
Result<T> MemberOr(const object& parent, std::string_view key, T fallback, std::string_view where,
                   std::string_view type) {
  const std::optional<element> value = Member(parent, key);
  if (!value) return fallback;
  if (value->get(fallback) != simdjson::SUCCESS) return WrongType(where, key, type);
  return fallback;
}

Result<bool> Flag(const object& parent, std::string_view key, bool fallback,
                  std::string_view where) {
  return MemberOr<bool>(parent, key, fallback, where, "true or false");
}

Result<std::string_view> Text(const object& parent, std::string_view key, std::string_view where) {
  return MemberOr<std::string_view>(parent, key, {}, where, "a string");
}

// A member that must be there.
Result<object> ObjectAt(const object& parent, std::string_view key, std::string_view where) {
  object value;
  const std::optional<element> member = Member(parent, key);
  if (!member || member->get(value) != simdjson::SUCCESS) return WrongType(where, key, "an object");
  return value;
}

// A member that may be absent or null: an empty list then.
Result<std::vector<element>> ListAt(const object& parent, std::string_view key,
                                    std::string_view where) {
  const std::optional<element> member = Member(parent, key);
  if (!member) return std::vector<element>{};
  array values;
  if (member->get(values) != simdjson::SUCCESS) return WrongType(where, key, "an array");
  return std::vector<element>(values.begin(), values.end());
}

// The "type" of a component of the pipeline.
Result<std::string_view> TypeOf(const element& component, std::string_view where, object* out) {
  if (component.get(*out) != simdjson::SUCCESS) {
    return InvalidArgument(fmt::format("{} must be an object", where));
  }
  return Text(*out, "type", where);
}

Status Unknown(std::string_view where, std::string_view type) {
  return Unimplemented(fmt::format("{}: the type '{}' is not supported", where, type));
}

// A component, or those of a Sequence (nested ones too) in order. `list_key`: where a Sequence has
// them. The depth is bounded by that of the document.
Status Flatten(const element& component, std::string_view list_key, const std::string& where,
               std::vector<std::pair<std::string, object>>* out) {
  object fields;
  TERN_ASSIGN_OR_RETURN(const std::string_view type, TypeOf(component, where, &fields));
  if (type != "Sequence") {
    out->emplace_back(where, fields);
    return OkStatus();
  }
  TERN_ASSIGN_OR_RETURN(const std::vector<element> parts, ListAt(fields, list_key, where));
  for (size_t i = 0; i < parts.size(); ++i) {
    TERN_RETURN_IF_ERROR(
        Flatten(parts[i], list_key, fmt::format("{}.{}[{}]", where, list_key, i), out));
  }
  return OkStatus();
}

Status ParseNormalizer(const object& root, TokenizerParts* parts) {
  const std::optional<element> normalizer = Member(root, "normalizer");
  if (!normalizer) return OkStatus();
  std::vector<std::pair<std::string, object>> components;
  TERN_RETURN_IF_ERROR(Flatten(*normalizer, "normalizers", "normalizer", &components));
  for (const auto& [where, fields] : components) {
    TERN_ASSIGN_OR_RETURN(const std::string_view type, Text(fields, "type", where));
    NormalizationForm form = NormalizationForm::kNone;
    if (type == "NFC") form = NormalizationForm::kNfc;
    if (type == "NFD") form = NormalizationForm::kNfd;
    if (type == "NFKC") form = NormalizationForm::kNfkc;
    if (type == "NFKD") form = NormalizationForm::kNfkd;
    if (form == NormalizationForm::kNone) return Unknown(where, type);
    if (parts->normalization != NormalizationForm::kNone) {
      return Unimplemented(fmt::format("{}: a second normalization", where));
    }
    parts->normalization = form;
  }
  return OkStatus();
}

Status ParseSplit(const object& fields, const std::string& where, PreTokenizer* pre) {
  static constexpr std::pair<std::string_view, SplitBehavior> kBehaviors[] = {
      {"Isolated", SplitBehavior::kIsolated},
      {"Removed", SplitBehavior::kRemoved},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  TERN_ASSIGN_OR_RETURN(const std::string_view name, Text(fields, "behavior", where));
  TERN_ASSIGN_OR_RETURN(const bool invert, Flag(fields, "invert", false, where));
  TERN_ASSIGN_OR_RETURN(const object pattern, ObjectAt(fields, "pattern", where));
  const std::string pattern_where = where + ".pattern";
  TERN_ASSIGN_OR_RETURN(const std::string_view regex, Text(pattern, "Regex", pattern_where));
  TERN_ASSIGN_OR_RETURN(const std::string_view text, Text(pattern, "String", pattern_where));
  if (regex.empty() == text.empty()) {
    return InvalidArgument(fmt::format("{} must have a Regex or a String", pattern_where));
  }
  for (const auto& [behavior_name, behavior] : kBehaviors) {
    if (behavior_name != name) continue;
    const Status status = regex.empty() ? pre->AddSplitByText(std::string(text), behavior, invert)
                                        : pre->AddSplitByRegex(regex, behavior, invert);
    return status.WithContext(pattern_where);
  }
  return Unimplemented(fmt::format("{}.behavior: '{}' is unknown", where, name));
}

Status ParsePreTokenizer(const object& root, TokenizerParts* parts) {
  const std::optional<element> pre_tokenizer = Member(root, "pre_tokenizer");
  std::vector<std::pair<std::string, object>> components;
  if (pre_tokenizer) {
    TERN_RETURN_IF_ERROR(Flatten(*pre_tokenizer, "pretokenizers", "pre_tokenizer", &components));
  }
  PreTokenizer& pre = parts->pre_tokenizer;
  bool byte_level = false;
  for (const auto& [where, fields] : components) {
    if (byte_level) return Unimplemented(fmt::format("{}: a step after ByteLevel", where));
    TERN_ASSIGN_OR_RETURN(const std::string_view type, Text(fields, "type", where));
    Status status;
    if (type == "Split") {
      status = ParseSplit(fields, where, &pre);
    } else if (type == "Digits") {
      TERN_ASSIGN_OR_RETURN(const bool individual, Flag(fields, "individual_digits", false, where));
      status = pre.AddDigits(individual);
    } else if (type == "ByteLevel") {
      byte_level = true;
      TERN_ASSIGN_OR_RETURN(const bool prefix, Flag(fields, "add_prefix_space", true, where));
      TERN_ASSIGN_OR_RETURN(const bool use_regex, Flag(fields, "use_regex", true, where));
      if (prefix) status = pre.AddPrefixSpace();
      if (status.ok() && use_regex) status = pre.AddNamed("gpt2");
    } else {
      return Unknown(where, type);
    }
    if (!status.ok()) return status;
  }
  if (!byte_level) {
    return Unimplemented("pre_tokenizer must have a ByteLevel step: tern has byte-level BPE only");
  }
  return OkStatus();
}

Status CheckDecoder(const object& root) {
  const std::optional<element> decoder = Member(root, "decoder");
  if (!decoder) return OkStatus();
  std::vector<std::pair<std::string, object>> components;
  TERN_RETURN_IF_ERROR(Flatten(*decoder, "decoders", "decoder", &components));
  for (const auto& [where, fields] : components) {
    TERN_ASSIGN_OR_RETURN(const std::string_view type, Text(fields, "type", where));
    if (type != "ByteLevel") return Unknown(where, type);
  }
  return OkStatus();
}

Result<TokenId> FrameToken(const element& value, std::string_view where) {
  int64_t id = -1;
  if (value.get(id) != simdjson::SUCCESS || id < 0 || id > std::numeric_limits<TokenId>::max()) {
    return InvalidArgument(fmt::format("{}: a token id must be from 0 to 2^31 - 1", where));
  }
  return static_cast<TokenId>(id);
}

// The template of a single text: special tokens, and once the text, {"Sequence": {"id": "A"}}.
Status ParseTemplate(const object& fields, const std::string& where, PromptFrame* frame) {
  TERN_ASSIGN_OR_RETURN(const std::vector<element> pieces, ListAt(fields, "single", where));
  bool has_text = false;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::string at = fmt::format("{}.single[{}]", where, i);
    object piece;
    if (pieces[i].get(piece) != simdjson::SUCCESS) {
      return InvalidArgument(fmt::format("{} must be an object", at));
    }
    if (Member(piece, "Sequence")) {
      TERN_ASSIGN_OR_RETURN(const object sequence, ObjectAt(piece, "Sequence", at));
      TERN_ASSIGN_OR_RETURN(const std::string_view id, Text(sequence, "id", at));
      if (id != "A" || has_text) {
        return Unimplemented(fmt::format("{}: a template of one text has it, A, once", at));
      }
      has_text = true;
      continue;
    }
    TERN_ASSIGN_OR_RETURN(const object token, ObjectAt(piece, "SpecialToken", at));
    TERN_ASSIGN_OR_RETURN(const std::string_view name, Text(token, "id", at));
    TERN_ASSIGN_OR_RETURN(const object known, ObjectAt(fields, "special_tokens", where));
    TERN_ASSIGN_OR_RETURN(const object special, ObjectAt(known, name, where + ".special_tokens"));
    TERN_ASSIGN_OR_RETURN(const std::vector<element> ids, ListAt(special, "ids", at));
    for (const element& value : ids) {
      TERN_ASSIGN_OR_RETURN(const TokenId id, FrameToken(value, at));
      (has_text ? frame->after : frame->before).push_back(id);
    }
  }
  if (!has_text) return Unimplemented(fmt::format("{}.single: the text, A, is missing", where));
  if (frame->before.size() + frame->after.size() <= kMaxFrameTokens) return OkStatus();
  return InvalidArgument(fmt::format("{} adds more than {} tokens", where, kMaxFrameTokens));
}

// RoBERTa's and BERT's: [CLS] text [SEP], each given as [text, id].
Status ParseClsSep(const object& fields, const std::string& where, PromptFrame* frame) {
  for (const auto& [key, ids] :
       {std::pair("cls", &frame->before), std::pair("sep", &frame->after)}) {
    TERN_ASSIGN_OR_RETURN(const std::vector<element> pair, ListAt(fields, key, where));
    if (pair.size() != 2) return WrongType(where, key, "a token and its id");
    TERN_ASSIGN_OR_RETURN(const TokenId id, FrameToken(pair[1], where));
    ids->push_back(id);
  }
  return OkStatus();
}

Status ParsePostProcessor(const object& root, PromptFrame* frame) {
  const std::optional<element> processor = Member(root, "post_processor");
  if (!processor) return OkStatus();
  std::vector<std::pair<std::string, object>> components;
  TERN_RETURN_IF_ERROR(Flatten(*processor, "processors", "post_processor", &components));
  bool adds_tokens = false;
  for (const auto& [where, fields] : components) {
    TERN_ASSIGN_OR_RETURN(const std::string_view type, Text(fields, "type", where));
    if (type == "ByteLevel") continue;  // only moves offsets
    // `tokenizers` hands what the first one made to the second as several texts.
    if (std::exchange(adds_tokens, true)) {
      return Unimplemented(fmt::format("{}: a second step that adds tokens", where));
    }
    if (type == "TemplateProcessing") {
      TERN_RETURN_IF_ERROR(ParseTemplate(fields, where, frame));
    } else if (type == "RobertaProcessing" || type == "BertProcessing") {
      TERN_RETURN_IF_ERROR(ParseClsSep(fields, where, frame));
    } else {
      return Unknown(where, type);
    }
  }
  return OkStatus();
}

Status ParseAddedTokens(const object& root, TokenizerParts* parts) {
  TERN_ASSIGN_OR_RETURN(const std::vector<element> list,
                        ListAt(root, "added_tokens", "tokenizer.json"));
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("added_tokens[{}]", i);
    object fields;
    if (list[i].get(fields) != simdjson::SUCCESS) {
      return InvalidArgument(fmt::format("{} must be an object", where));
    }
    AddedToken token;
    TERN_ASSIGN_OR_RETURN(const int64_t id,
                          MemberOr<int64_t>(fields, "id", -1, where, "an integer"));
    if (id < 0 || id > std::numeric_limits<TokenId>::max()) {
      return InvalidArgument(fmt::format("{}.id must be from 0 to 2^31 - 1", where));
    }
    token.id = static_cast<TokenId>(id);
    TERN_ASSIGN_OR_RETURN(const std::string_view content, Text(fields, "content", where));
    token.content = content;
    TERN_ASSIGN_OR_RETURN(token.special, Flag(fields, "special", false, where));
    TERN_ASSIGN_OR_RETURN(token.lstrip, Flag(fields, "lstrip", false, where));
    TERN_ASSIGN_OR_RETURN(token.rstrip, Flag(fields, "rstrip", false, where));
    TERN_ASSIGN_OR_RETURN(token.single_word, Flag(fields, "single_word", false, where));
    TERN_ASSIGN_OR_RETURN(token.normalized, Flag(fields, "normalized", !token.special, where));
    parts->added.push_back(std::move(token));
  }
  return OkStatus();
}

// "left right", or ["left", "right"].
Status ParseMerges(const object& model, TokenizerParts* parts) {
  TERN_ASSIGN_OR_RETURN(const std::vector<element> list, ListAt(model, "merges", "model"));
  std::vector<std::pair<std::string_view, std::string_view>> merges;
  merges.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    std::string_view left, right, both;
    array pair;
    bool ok = false;
    if (list[i].get(both) == simdjson::SUCCESS) {
      const size_t space = both.find(' ');
      ok = space != std::string_view::npos && both.find(' ', space + 1) == std::string_view::npos;
      if (ok) merges.emplace_back(both.substr(0, space), both.substr(space + 1));
    } else if (list[i].get(pair) == simdjson::SUCCESS && pair.size() == 2) {
      ok = pair.at(0).get(left) == simdjson::SUCCESS && pair.at(1).get(right) == simdjson::SUCCESS;
      if (ok) merges.emplace_back(left, right);
    }
    if (!ok) {
      return InvalidArgument(
          fmt::format("model.merges[{}] must be \"left right\" or [\"left\", \"right\"]", i));
    }
  }
  return FillMerges(merges, "model.merges", parts);
}

Status ParseModel(const object& root, TokenizerParts* parts) {
  TERN_ASSIGN_OR_RETURN(const object model, ObjectAt(root, "model", "tokenizer.json"));
  TERN_ASSIGN_OR_RETURN(const std::string_view type, Text(model, "type", "model"));
  // Files before the key existed have merges and no type.
  if (type != "BPE" && !(type.empty() && Member(model, "merges"))) return Unknown("model", type);
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    TERN_ASSIGN_OR_RETURN(const std::string_view text, Text(model, key, "model"));
    if (!text.empty()) return Unimplemented(fmt::format("model.{} is not supported", key));
  }
  TERN_ASSIGN_OR_RETURN(const double dropout,
                        MemberOr<double>(model, "dropout", 0, "model", "a number"));
  TERN_ASSIGN_OR_RETURN(const bool byte_fallback, Flag(model, "byte_fallback", false, "model"));
  if (dropout != 0) return Unimplemented("model.dropout is not supported");
  if (byte_fallback) return Unimplemented("model.byte_fallback is not supported");

  TERN_ASSIGN_OR_RETURN(const object vocab, ObjectAt(model, "vocab", "model"));
  std::vector<std::pair<std::string_view, int64_t>> vocabulary;
  for (const auto& [text, value] : vocab) {
    int64_t id = 0;
    if (value.get(id) != simdjson::SUCCESS) {
      return InvalidArgument(fmt::format("model.vocab['{:.40}'] must be an integer", text));
    }
    vocabulary.emplace_back(text, id);
  }
  TERN_RETURN_IF_ERROR(FillVocabulary(vocabulary, parts->added.size(), "model.vocab", parts));
  TERN_RETURN_IF_ERROR(ParseMerges(model, parts));

  TERN_ASSIGN_OR_RETURN(parts->bpe.ignore_merges, Flag(model, "ignore_merges", false, "model"));
  TERN_ASSIGN_OR_RETURN(parts->bpe.fuse_unk, Flag(model, "fuse_unk", false, "model"));
  TERN_ASSIGN_OR_RETURN(const std::string_view unk, Text(model, "unk_token", "model"));
  parts->bpe.unk = FindToken(unk, *parts);
  return OkStatus();
}

Status ParseRoot(const object& root, TokenizerParts* parts) {
  TERN_RETURN_IF_ERROR(ParseNormalizer(root, parts));
  TERN_RETURN_IF_ERROR(ParsePreTokenizer(root, parts));
  TERN_RETURN_IF_ERROR(CheckDecoder(root));
  TERN_RETURN_IF_ERROR(ParsePostProcessor(root, &parts->frame));
  TERN_RETURN_IF_ERROR(ParseAddedTokens(root, parts));
  return ParseModel(root, parts);
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::FromTokenizerJson(
    std::string_view json, std::string_view config_json) {
  constexpr std::string_view kFile = "tokenizer.json";
  simdjson::dom::parser parser;
  object root;
  simdjson::error_code error = parser.allocate(json.size(), kMaxJsonDepth);
  if (error == simdjson::SUCCESS) error = parser.parse(json.data(), json.size()).get(root);
  if (error == simdjson::INCORRECT_TYPE) {
    return InvalidArgument(fmt::format("{} must be an object", kFile));
  }
  if (error != simdjson::SUCCESS) {
    return InvalidArgument(fmt::format("{}: {}", kFile, simdjson::error_message(error)));
  }
  TokenizerParts parts;
  if (const Status status = ParseRoot(root, &parts); !status.ok()) {
    return status.WithContext(kFile);
  }
  TERN_ASSIGN_OR_RETURN(const TokenizerConfig config, ParseTokenizerConfig(config_json));
  parts.bos = FindToken(config.bos_token, parts);
  parts.eos = FindToken(config.eos_token, parts);
  if (config.adds_bos && parts.bos) parts.frame = {{*parts.bos}, {}};
  Result<std::shared_ptr<const Tokenizer>> tokenizer = MakeByteLevelTokenizer(std::move(parts));
  if (!tokenizer.ok()) return tokenizer.status().WithContext(kFile);
  return tokenizer;
}

}  // namespace tern
