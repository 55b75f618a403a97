#include "cmd/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_tokenizer.h"
#include "text/byte_alphabet.h"

namespace tern {
namespace {

constexpr uint64_t kMaxTokenizerBytes = uint64_t{256} << 20;

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
}

Result<TokenizerSpec> SpecOf(GgufTokenizer gguf, const std::string& path) {
  if (gguf.model != "gpt2") {
    return Unimplemented(
        fmt::format("{}: tokenizer.ggml.model '{}' is not supported (gpt2, "
                    "byte-level BPE, is)",
                    path, gguf.model));
  }
  TokenizerSpec spec;
  for (size_t id = 0; id < gguf.tokens.size(); ++id) {
    const bool control = gguf.token_types[id] == GgufTokenType::kControl;
    if (!control && gguf.token_types[id] != GgufTokenType::kUserDefined) continue;
    spec.added.push_back(
        {.id = static_cast<TokenId>(id), .content = gguf.tokens[id], .special = control});
  }
  spec.vocab = std::move(gguf.tokens);
  spec.merges = std::move(gguf.merges);
  spec.pre_tokenizer = gguf.pre.empty() ? "gpt2" : gguf.pre;
  spec.ignore_merges = IgnoresMerges(gguf.pre);
  spec.add_prefix_space = gguf.add_space_prefix;
  spec.bos = gguf.bos;
  spec.eos = gguf.eos;
  spec.frame = FrameOf(gguf);
  return spec;
}

Result<GgufTokenizer> ReadGgufTokenizer(const std::string& path) {
  TERN_ASSIGN_OR_RETURN(const OpenedGguf opened, OpenGgufFile(path));
  return TokenizerFromGguf(opened.gguf);
}

bool IsOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <typename T>
Result<T> Named(Result<T> result, const std::string& path) {
  if (result.ok()) return result;
  return result.status().WithContext(path);
}

// tokenizer.json or tiktoken.model, with the tokenizer_config.json beside it.
using FromBytes = Result<std::shared_ptr<const Tokenizer>> (*)(std::string_view, std::string_view);
Result<std::shared_ptr<const Tokenizer>> LoadTokenizerFile(const std::string& path,
                                                           FromBytes from_bytes) {
  TERN_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxTokenizerBytes));
  std::string config;
  if (const std::string beside = FolderOf(path) + "/tokenizer_config.json"; FileExists(beside)) {
    TERN_ASSIGN_OR_RETURN(config, ReadFile(beside, kMaxTokenizerBytes));
  }
  return Named(from_bytes(bytes, config), path);
}

}  // namespace

bool IgnoresMerges(const std::string& pre) {
  return IsOneOf(pre, {"llama3", "llama-v3", "llama-bpe", "glm4"});
}

PromptFrame FrameOf(const GgufTokenizer& gguf) {
  const bool adds_bos = IsOneOf(gguf.pre, {"llama3", "llama-v3", "llama-bpe"});
  PromptFrame frame;
  if (gguf.add_bos.value_or(adds_bos) && gguf.bos) frame.before.push_back(*gguf.bos);
  if (gguf.add_eos.value_or(false) && gguf.eos) frame.after.push_back(*gguf.eos);
  return frame;
}

std::string ModelFolder(const std::string& path) {
  return IsDirectory(path) ? path : FolderOf(path);
}

Result<std::shared_ptr<const Tokenizer>> LoadTokenizer(const std::string& path) {
  if (IsDirectory(path)) {
    for (const char* name : {"/tokenizer.json", "/tiktoken.model"}) {
      if (FileExists(path + name)) return LoadTokenizer(path + name);
    }
    return NotFound(fmt::format("{} has neither tokenizer.json nor tiktoken.model", path));
  }
  if (path.ends_with(".gguf")) {
    TERN_ASSIGN_OR_RETURN(GgufTokenizer gguf, ReadGgufTokenizer(path));
    TERN_ASSIGN_OR_RETURN(TokenizerSpec spec, SpecOf(std::move(gguf), path));
    return Named(Tokenizer::FromSpec(std::move(spec)), path);
  }
  if (path.ends_with(".json")) return LoadTokenizerFile(path, Tokenizer::FromTokenizerJson);
  if (path.ends_with(".model")) return LoadTokenizerFile(path, Tokenizer::FromTiktoken);
  if (path.ends_with(".safetensors")) return LoadTokenizer(FolderOf(path));
  if (!FileExists(path)) return NotFound(fmt::format("cannot open {}: no such file", path));
  return InvalidArgument(
      fmt::format("{} is no tokenizer: give a folder, FILE.gguf, FILE.json or FILE.model", path));
}

Result<std::shared_ptr<const Tokenizer>> LoadDummyTokenizer(const std::string& path) {
  const std::string folder = ModelFolder(path);
  for (const char* name : {"/tokenizer.json", "/tiktoken.model"}) {
    if (FileExists(folder + name)) return LoadTokenizer(folder + name);
  }
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) {
    spec.vocab.push_back(EncodeByteAlphabet(std::string(1, static_cast<char>(byte))));
  }
  spec.pre_tokenizer = "gpt2";
  return Tokenizer::FromSpec(std::move(spec));
}

namespace {

// The `chat_template` of tokenizer_config.json: one template, or a list of named ones.
Result<std::string> TemplateOfTokenizerConfig(const std::string& path) {
  TERN_ASSIGN_OR_RETURN(const Json json, ParseJsonFile(path));
  const auto found = json.is_object() ? json.find("chat_template") : json.end();
  if (found == json.end() || found->is_null()) {
    return NotFound(path + " has no chat_template");
  }
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array()) {
    for (const Json& named : *found) {
      if (!named.is_object() || named.value("name", Json()) != "default") continue;
      TERN_ASSIGN_OR_RETURN(std::string source,
                            JsonString(named, "template", "", path + ": chat_template"));
      if (!source.empty()) return source;
    }
  }
  return InvalidArgument(path + ": chat_template must be a string or a list with a 'default'");
}

}  // namespace

Result<std::string> LoadChatTemplateSource(const std::string& model_path) {
  if (model_path.ends_with(".gguf")) {
    TERN_ASSIGN_OR_RETURN(GgufTokenizer gguf, ReadGgufTokenizer(model_path));
    if (!gguf.chat_template) return NotFound(model_path + " has no tokenizer.chat_template");
    return *std::move(gguf.chat_template);
  }
  const std::string folder = ModelFolder(model_path);
  const std::string jinja = folder + "/chat_template.jinja";
  if (FileExists(jinja)) return ReadFile(jinja, kMaxTokenizerBytes);
  const std::string config = folder + "/tokenizer_config.json";
  if (FileExists(config)) return TemplateOfTokenizerConfig(config);
  return NotFound(
      fmt::format("{} has neither chat_template.jinja nor tokenizer_config.json", folder));
}

}  // namespace tern
