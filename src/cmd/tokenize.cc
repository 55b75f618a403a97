// tern tokenize: text to token ids and back, line by line. For scripts and for comparisons with
// other tokenizers.
#include <fmt/format.h>

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/args.h"
#include "base/json.h"
#include "base/utf8.h"
#include "cmd/commands.h"
#include "cmd/line_filter.h"
#include "cmd/load.h"

namespace tern {
namespace {

struct TokenizeOptions {
  std::string tokenizer;
  bool no_special = false;
  bool framed = false;
  bool decode = false;
};

// A JSON string to a JSON array of ids.
Result<std::string> EncodeLine(const Tokenizer& tokenizer, const TokenizeOptions& options,
                               const Json& line) {
  if (!line.is_string()) return InvalidArgument("expected a JSON string");
  const std::string& text = line.get_ref<const std::string&>();
  const std::vector<TokenId> ids =
      options.framed ? tokenizer.EncodeFramed(text) : tokenizer.Encode(text, !options.no_special);
  return fmt::format("[{}]", fmt::join(ids, ","));
}

// A JSON array of ids to a JSON string.
Result<std::string> DecodeLine(const Tokenizer& tokenizer, const Json& line) {
  if (!line.is_array()) return InvalidArgument("expected a JSON array of ids");
  std::vector<TokenId> ids;
  for (const Json& id : line) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
        id.get<int64_t>() >= tokenizer.vocab_size()) {
      return InvalidArgument(fmt::format("the id {} is not in the vocabulary of {} tokens",
                                         DumpJson(id), tokenizer.vocab_size()));
    }
    ids.push_back(static_cast<TokenId>(id.get<int64_t>()));
  }
  return JsonQuote(ReplaceInvalidUtf8(tokenizer.Decode(ids, false)));
}

Result<std::string> TokenizeLine(const TokenizeOptions& options, const Tokenizer& tokenizer,
                                 const std::string& line) {
  TERN_ASSIGN_OR_RETURN(const Json json, ParseJson(line));
  return options.decode ? DecodeLine(tokenizer, json) : EncodeLine(tokenizer, options, json);
}

int Fail(const Status& status, int exit_code) {
  fmt::print(stderr, "tern tokenize: {}\n", status.message());
  return exit_code;
}

}  // namespace

int TokenizeCommand(const std::vector<std::string>& args) {
  TokenizeOptions options;
  OptionTable table("tern tokenize",
                    "Reads one JSON string a line and writes its token ids, one JSON array a line. "
                    "Added and special tokens in the text become their ids.");
  table
      .Add("--tokenizer", &options.tokenizer, "DIR|FILE",
           "a model's folder, a GGUF file, a tokenizer.json or a tiktoken.model")
      .Required();
  table.Add("--no-special", &options.no_special, "", "all text is plain text");
  table.Add("--add-special-tokens", &options.framed, "",
            "adds what the tokenizer puts around a prompt (a BOS, mostly), as the server does for "
            "prompts that no chat template has made");
  table.Add("--decode", &options.decode, "",
            "the other way: arrays of ids in, strings out; special tokens are kept, and bytes that "
            "are no UTF-8 become U+FFFD");
  const Result<ParseOutcome> outcome = table.Parse(args);
  if (!outcome.ok()) return Fail(outcome.status(), 2);
  if (*outcome == ParseOutcome::kHelpShown) return 0;
  if (options.framed && options.no_special) {
    return Fail(InvalidArgument("--no-special and --add-special-tokens exclude each other"), 2);
  }

  const auto tokenizer = LoadTokenizer(options.tokenizer);
  if (!tokenizer.ok()) return Fail(tokenizer.status(), 1);
  const Status status = FilterLines(
      "line", [&](const std::string& line) { return TokenizeLine(options, **tokenizer, line); });
  return status.ok() ? 0 : Fail(status, 1);
}

}  // namespace tern
