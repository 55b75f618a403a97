// POST /tokenize and /detokenize: SGLang's; nothing is generated.
#include <utility>

#include "base/utf8.h"
#include "server/choices.h"
#include "server/errors.h"
#include "server/native.h"

namespace tern {
namespace {

constexpr std::string_view kBody = "body";

Result<Json> Tokenize(const EndpointContext& context, const HttpRequest& request) {
  TERN_ASSIGN_OR_RETURN(const Json body, ParseJson(request.body));
  if (!body.is_object()) return InvalidArgument("the body must be a JSON object");
  const Json* prompt = JsonMember(body, "prompt");
  const Status wrong = InvalidArgument("body.prompt must be a string or a list of strings");
  if (prompt == nullptr || (!prompt->is_string() && !prompt->is_array())) return wrong;
  TERN_ASSIGN_OR_RETURN(const bool framed, JsonBool(body, "add_special_tokens", true, kBody));
  if (prompt->size() > kMaxPrompts) return InvalidArgument("body.prompt has too many texts");
  const Json texts = prompt->is_array() ? *prompt : Json::array({*prompt});
  Json tokens = Json::array(), counts = Json::array();
  for (const Json& text : texts) {
    if (!text.is_string()) return wrong;
    TERN_ASSIGN_OR_RETURN(
        const std::vector<int32_t> ids,
        TokenizePrompt(text.get_ref<const std::string&>(), framed, context.model));
    tokens.push_back(ids);
    counts.push_back(ids.size());
  }
  const bool one = prompt->is_string();
  return Json{{"tokens", one ? tokens[0] : tokens},
              {"count", one ? counts[0] : counts},
              {"max_model_len", context.model.context_length}};
}

Result<Json> Detokenize(const EndpointContext& context, const HttpRequest& request) {
  TERN_ASSIGN_OR_RETURN(const Json body, ParseJson(request.body));
  if (!body.is_object()) return InvalidArgument("the body must be a JSON object");
  TERN_ASSIGN_OR_RETURN(const bool skip_special,
                        JsonBool(body, "skip_special_tokens", true, kBody));
  const Json* tokens = JsonMember(body, "tokens");
  if (tokens == nullptr) return InvalidArgument("body.tokens is required");
  const Tokenizer& tokenizer = *context.model.tokenizer;
  const auto text_of = [&](const Json& list) -> Result<Json> {
    TERN_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ParseTokenIds(list, "body.tokens"));
    for (const int32_t id : ids) {
      if (id >= tokenizer.vocab_size()) {
        return InvalidArgument("body.tokens: " + std::to_string(id) + " is not a token id");
      }
    }
    return Json(ReplaceInvalidUtf8(tokenizer.Decode(ids, skip_special)));
  };
  Json text;
  if (tokens->is_array() && !tokens->empty() && (*tokens)[0].is_array()) {
    text = Json::array();
    for (const Json& list : *tokens) {
      TERN_ASSIGN_OR_RETURN(Json one, text_of(list));
      text.push_back(std::move(one));
    }
  } else {
    TERN_ASSIGN_OR_RETURN(text, text_of(*tokens));
  }
  return Json{{"text", std::move(text)}};
}

void Answer(const Result<Json>& answer, ResponseWriter& writer) {
  if (!answer.ok()) return SendError(writer, answer.status());
  writer.Send(200, {{"Content-Type", "application/json"}}, DumpJson(*answer));
}

}  // namespace

void HandleTokenize(const EndpointContext& context, const HttpRequest& request,
                    std::shared_ptr<ResponseWriter> writer) {
  Answer(Tokenize(context, request), *writer);
}

void HandleDetokenize(const EndpointContext& context, const HttpRequest& request,
                      std::shared_ptr<ResponseWriter> writer) {
  Answer(Detokenize(context, request), *writer);
}

}  // namespace tern
