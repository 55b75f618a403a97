#include "bench/serve_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/rng.h"
#include "net/http_client.h"

namespace tern {
namespace {

constexpr size_t kMaxLine = 1 << 20;
constexpr size_t kMaxQuoted = 300;

// Requests of a run and when they are due.
struct Plan {
  std::vector<std::string> bodies;
  std::vector<double> due;  // seconds from the start; empty: as soon as a connection is free
};

std::string BodyOf(const ServeBenchOptions& o, Rng& rng) {
  Json prompt = Json::array();
  const auto range = static_cast<uint64_t>(o.token_high - o.token_low);
  for (int64_t i = 0; i < o.prompt_tokens; ++i) {
    prompt.push_back(o.token_low + static_cast<int64_t>(rng.Below(range)));
  }
  return DumpJson({{"model", o.model},
                   {"prompt", prompt},
                   {"max_tokens", o.output_tokens},
                   {"temperature", 0},
                   {"ignore_eos", o.ignore_eos},
                   {"stream", true},
                   {"stream_options", {{"include_usage", true}}}});
}

Plan MakePlan(const ServeBenchOptions& options, int64_t requests, bool open, Rng& rng) {
  Plan plan;
  double due = 0;
  for (int64_t i = 0; i < requests; ++i) {
    plan.bodies.push_back(BodyOf(options, rng));
    if (!open) continue;
    due += -std::log1p(-rng.Uniform()) / options.rate;
    plan.due.push_back(due);
  }
  return plan;
}

// One request's stream becomes its record.
class StreamWatch {
 public:
  StreamWatch(RequestRecord& record, int64_t run_start_us)
      : record_(record), run_start_us_(run_start_us) {}

  double Now() const { return static_cast<double>(SystemClock().NowUs() - run_start_us_) * 1e-6; }
  void Feed(std::string_view bytes) {
    const double now = Now();
    reader_.Feed(bytes, [&](std::string_view data) { OnEvent(data, now); });
  }
  void Finish() {
    if (record_.output_tokens == 0) record_.output_tokens = pieces_;
    if (pieces_ == 0 && record_.error.empty()) record_.error = "the answer holds no text";
  }

 private:
  void OnEvent(std::string_view data, double now) {
    if (data == "[DONE]") return;
    const Result<Json> json = ParseJson(data);
    if (!json.ok() || !json->is_object()) {
      record_.error = "an event is no JSON object";
      return;
    }
    if (JsonMember(*json, "error") != nullptr) {
      record_.error = DumpJson(*json).substr(0, kMaxQuoted);
      return;
    }
    if (const Json* usage = JsonMember(*json, "usage")) {
      const Result<int64_t> tokens = JsonInt(*usage, "completion_tokens", 0, "usage");
      if (tokens.ok() && *tokens > 0) record_.output_tokens = *tokens;
    }
    const Json* choices = JsonMember(*json, "choices");
    if (choices == nullptr || !choices->is_array() || choices->empty()) return;
    const Json* finish = JsonMember((*choices)[0], "finish_reason");
    const Result<std::string> text = JsonString((*choices)[0], "text", "", "choices[0]");
    // Bytes of a character that is not complete yet come as an empty text.
    if (!text.ok() || (text->empty() && finish != nullptr)) return;
    if (pieces_ == 0) {
      record_.first = now;
    } else {
      record_.gaps.push_back(now - record_.last);
    }
    record_.last = now;
    ++pieces_;
  }

  RequestRecord& record_;
  const int64_t run_start_us_;
  SseReader reader_;
  int64_t pieces_ = 0;
};

class LoadRun {
 public:
  LoadRun(const ServeBenchOptions& options, Plan plan,
          std::function<void(int64_t done, int64_t total)> progress)
      : options_(options), plan_(std::move(plan)), progress_(std::move(progress)) {
    records_.resize(plan_.bodies.size());
  }

  std::vector<RequestRecord> Run() {
    start_us_ = SystemClock().NowUs();
    std::vector<std::thread> threads;
    const size_t connections =
        std::min(static_cast<size_t>(options_.concurrency), plan_.bodies.size());
    for (size_t i = 0; i < connections; ++i) threads.emplace_back([this] { Connection(); });
    for (std::thread& thread : threads) thread.join();
    return std::move(records_);
  }

 private:
  double Now() const { return static_cast<double>(SystemClock().NowUs() - start_us_) * 1e-6; }

  void Connection() {
    Result<std::unique_ptr<HttpClient>> client = HttpClient::Create(options_.url);
    while (true) {
      const size_t index = next_.fetch_add(1);
      if (index >= plan_.bodies.size()) return;
      RequestRecord& record = records_[index];
      if (!client.ok()) {
        record.error = client.status().message();
        continue;
      }
      record.start = Now();
      if (!plan_.due.empty()) {
        const double wait = plan_.due[index] - record.start;
        if (wait > 0) std::this_thread::sleep_for(std::chrono::duration<double>(wait));
        record.start = plan_.due[index];
      }
      Send(**client, plan_.bodies[index], record);
      MutexLock lock(mutex_);
      progress_(++done_, static_cast<int64_t>(plan_.bodies.size()));
    }
  }

  void Send(HttpClient& client, const std::string& body, RequestRecord& record) {
    HttpHeaders headers = {{"Content-Type", "application/json"}};
    if (!options_.api_key.empty()) {
      headers.push_back({"Authorization", "Bearer " + options_.api_key});
    }
    StreamWatch watch(record, start_us_);
    const Result<HttpResponse> response = client.Stream(
        "POST", "/v1/completions", headers, body,
        [&](std::string_view data) {
          watch.Feed(data);
          return true;
        },
        nullptr, options_.timeout_us);
    if (!response.ok()) {
      record.error = response.status().message();
    } else if (response->status != 200) {
      record.error =
          fmt::format("status {}: {}", response->status, response->body.substr(0, kMaxQuoted));
    } else {
      watch.Finish();
    }
  }

  const ServeBenchOptions& options_;
  const Plan plan_;
  const std::function<void(int64_t done, int64_t total)> progress_;
  int64_t start_us_ = 0;
  std::atomic<size_t> next_{0};
  std::vector<RequestRecord> records_;  // each written by one connection
  Mutex mutex_;
  int64_t done_ TERN_GUARDED_BY(mutex_) = 0;
};

}  // namespace

void SseReader::Feed(std::string_view bytes,
                     const std::function<void(std::string_view data)>& on_data) {
  rest_ += bytes;
  size_t begin = 0;
  for (size_t end; (end = rest_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    std::string_view line(rest_.data() + begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.starts_with("data:")) continue;
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    on_data(line);
  }
  rest_.erase(0, begin);
  if (rest_.size() > kMaxLine) rest_.clear();  // no event of a server is as long
}

Result<ServeBenchResult> RunServeBench(
    const ServeBenchOptions& options,
    const std::function<void(int64_t done, int64_t total)>& progress) {
  TERN_RETURN_IF_ERROR(HttpClient::Create(options.url).status());
  if (options.token_high <= options.token_low || options.token_low < 0) {
    return InvalidArgument("the range of token ids is empty");
  }
  Rng rng(options.seed);
  if (options.warm_ups > 0) {
    LoadRun(options, MakePlan(options, options.warm_ups, false, rng), [](int64_t, int64_t) {
    }).Run();
  }
  ServeBenchResult result;
  result.records =
      LoadRun(options, MakePlan(options, options.requests, options.rate > 0, rng), progress).Run();
  double begin = HUGE_VAL, end = 0;
  for (const RequestRecord& record : result.records) {
    if (!record.error.empty()) continue;
    begin = std::min(begin, record.start);
    end = std::max(end, record.last);
  }
  if (end == 0) {
    return Unavailable(fmt::format("{} answered no request: {}", options.url,
                                   result.records.empty() ? "" : result.records[0].error));
  }
  result.seconds = end - begin;
  return result;
}

}  // namespace tern
