#include "server/session.h"

#include <string>

namespace tern {

Status AddSession(const Json& body, const HttpHeaders& headers, std::vector<ChoiceSpec>* choices) {
  TERN_ASSIGN_OR_RETURN(std::string session, JsonString(body, "prompt_cache_key", "", "body"));
  const std::string* header = FindHeader(headers, "x-session-affinity");
  if (session.empty() && header != nullptr) session = *header;
  for (ChoiceSpec& choice : *choices) choice.request.session = session;
  return OkStatus();
}

}  // namespace tern
