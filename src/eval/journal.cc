#include "eval/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/file.h"

namespace tern {
namespace {

constexpr const char* kKind = "tern_eval_journal";

Status Failed(const std::string& path, const char* what) {
  return FailedPrecondition(fmt::format("cannot {} {}: {}", what, path, std::strerror(errno)));
}

}  // namespace

std::string HashText(uint64_t hash) { return fmt::format("{:016x}", hash); }

Json AnswerToJson(const TaskAnswer& answer) {
  Json json = {{"text", answer.text}};
  if (answer.call) {
    json["call"] = {{"name", answer.call->name}, {"arguments", answer.call->arguments}};
  }
  json["tokens"] = answer.completion_tokens;
  if (answer.cut) json["cut"] = true;
  return json;
}

Result<TaskAnswer> AnswerFromJson(const Json& json) {
  if (!json.is_object()) return InvalidArgument("answer must be an object");
  TaskAnswer answer;
  TERN_ASSIGN_OR_RETURN(answer.text, JsonString(json, "text", "", "answer"));
  TERN_ASSIGN_OR_RETURN(answer.completion_tokens, JsonInt(json, "tokens", 0, "answer"));
  TERN_ASSIGN_OR_RETURN(answer.cut, JsonBool(json, "cut", false, "answer"));
  if (const Json* call = JsonMember(json, "call"); call != nullptr && call->is_object()) {
    AnsweredCall read;
    TERN_ASSIGN_OR_RETURN(read.name, JsonString(*call, "name", "", "answer.call"));
    TERN_ASSIGN_OR_RETURN(read.arguments, JsonString(*call, "arguments", "", "answer.call"));
    answer.call = std::move(read);
  }
  return answer;
}

Result<size_t> Journal::Read(const std::string& text, const Json& run) {
  size_t whole = 0;
  for (int64_t number = 1; whole < text.size(); ++number) {
    const size_t end = text.find('\n', whole);
    if (end == std::string::npos) break;  // cut off while it was written
    const std::string where = fmt::format("{}: line {}", path_, number);
    const Result<Json> line = ParseJson(std::string_view(text).substr(whole, end - whole));
    if (!line.ok() || !line->is_object()) return DataLoss(where + " is no JSON object");
    if (number == 1) {
      const Json* kind = JsonMember(*line, kKind);
      if (kind == nullptr) return DataLoss(path_ + " is no journal of tern eval");
      if (!JsonEqual(*kind, run)) {
        return FailedPrecondition(
            fmt::format("{} is of another run ({}): remove it, or give another --json", path_,
                        DumpJson(*kind)));
      }
    } else {
      const Json* answer = JsonMember(*line, "answer");
      const Result<std::string> hash = JsonString(*line, "item", "", "line");
      if (answer == nullptr || !hash.ok() || hash->size() != 16) {
        return DataLoss(where + " holds no answer");
      }
      Result<TaskAnswer> read = AnswerFromJson(*answer);
      if (!read.ok()) return DataLoss(where + ": " + read.status().message());
      answers_[std::strtoull(hash->c_str(), nullptr, 16)] = std::move(read).value();
    }
    whole = end + 1;
  }
  return whole;
}

Result<std::unique_ptr<Journal>> Journal::Open(const std::string& path, const Json& run,
                                               bool resume) {
  std::unique_ptr<Journal> journal(new Journal(path));
  size_t whole = 0;
  if (FileExists(path)) {
    if (!resume) {
      return FailedPrecondition(fmt::format(
          "{} holds the answers of a run that broke off: go on with --resume, or remove it", path));
    }
    TERN_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, uint64_t{16} << 30));
    TERN_ASSIGN_OR_RETURN(whole, journal->Read(text, run));
  }
  journal->fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND, 0666);
  if (journal->fd_ < 0) return Failed(path, "create");
  if (ftruncate(journal->fd_, static_cast<off_t>(whole)) != 0) return Failed(path, "write");
  if (whole == 0) {
    Json header = Json::object();
    header[kKind] = run;
    TERN_RETURN_IF_ERROR(journal->Write(header));
  }
  return journal;
}

Journal::~Journal() {
  if (fd_ >= 0) close(fd_);
}

const TaskAnswer* Journal::Find(uint64_t item_hash) const {
  const auto found = answers_.find(item_hash);
  return found == answers_.end() ? nullptr : &found->second;
}

Status Journal::Write(const Json& line) {
  const std::string bytes = DumpJson(line) + "\n";
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t written = write(fd_, bytes.data() + at, bytes.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failed(path_, "write");
    at += static_cast<size_t>(written);
  }
  return OkStatus();
}

Status Journal::Add(uint64_t item_hash, const TaskAnswer& answer) {
  answers_[item_hash] = answer;
  return Write({{"item", HashText(item_hash)}, {"answer", AnswerToJson(answer)}});
}

void Journal::Remove() { unlink(path_.c_str()); }

}  // namespace tern
