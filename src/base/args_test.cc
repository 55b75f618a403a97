#include "base/args.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

namespace tern {
namespace {

struct Fixture {
  std::string model, host = "127.0.0.1", key;
  int64_t port = 30000;
  double fraction = 0.8;
  bool metrics = false;
  std::vector<std::string> stop;
  std::optional<int64_t> tokens;
  OptionTable table{"tern test", "A test."};

  Fixture() {
    table.Add("--model-path", &model, "DIR", "the model").Alias("--model").Required();
    table.Add("--host", &host, "HOST", "address").Choices({"127.0.0.1", "0.0.0.0"});
    table.Add("--port", &port, "PORT", "port").Range(0, 65535);
    table.Add("--fraction", &fraction, "X", "fraction").Range(0, 1);
    table.Add("--enable-metrics", &metrics, "", "metrics");
    table.Add("--stop", &stop, "TEXT", "stops");
    table.Add("--max-total-tokens", &tokens, "N", "tokens").Range(1, 1e12);
    table.Add("--api-key", &key, "KEY", "key").Secret();
    table.AddConfigFile();
  }
  Status Parse(std::vector<std::string> args) { return table.Parse(args).status(); }
};

TEST(Args, ParsesEveryType) {
  Fixture f;
  ASSERT_TRUE(f.Parse({"--model", "m", "--port=0", "--fraction", "0.5", "--enable-metrics",
                       "--stop", "a", "b", "--max-total-tokens", "4096", "--api-key", "k"})
                  .ok());
  EXPECT_EQ(f.model, "m");
  EXPECT_EQ(f.port, 0);
  EXPECT_EQ(f.fraction, 0.5);
  EXPECT_TRUE(f.metrics);
  EXPECT_EQ(f.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(f.tokens, 4096);
  const Json json = f.table.ToJson();
  EXPECT_EQ(json["model_path"], "m");
  EXPECT_EQ(json["enable_metrics"], true);
  EXPECT_FALSE(json.contains("api_key"));
}

TEST(Args, AFlagTakesAValueOnlyAfterAnEqualsSign) {
  struct Inspect {
    std::string path;
    bool json = true, verbose = false;
    OptionTable table{"tern test", "A test."};
    Inspect() {
      table.Add("--path", &path, "PATH", "what").Positional();
      table.Add("--json", &json, "", "JSON").Alias("-j");
      table.Add("--verbose", &verbose, "", "more");
    }
  };
  struct Case {
    std::vector<std::string> args;
    bool json;
    std::string path;
  };
  for (const auto& [args, json, path] :
       std::vector<Case>{{{"--json", "DIR"}, true, "DIR"},
                         {{"DIR", "--json"}, true, "DIR"},
                         {{"--json=false", "DIR"}, false, "DIR"},
                         {{"--json=0", "DIR", "--verbose"}, false, "DIR"},
                         {{"--json=no", "--json", "DIR"}, true, "DIR"},  // the last one counts
                         {{"--json", "false"}, true, "false"},
                         {{"-j", "DIR"}, true, "DIR"}}) {
    Inspect i;
    const Status status = i.table.Parse(args).status();
    EXPECT_TRUE(status.ok()) << args[0] << ": " << status.message();
    EXPECT_EQ(i.json, json) << args[0];
    EXPECT_EQ(i.path, path) << args[0];
  }
  Inspect i;
  EXPECT_EQ(i.table.Parse({"--json=maybe", "DIR"}).status().message(),
            "--json: 'maybe' is neither true nor false");
}

TEST(Args, ErrorsNameTheFlag) {
  const auto error = [](std::vector<std::string> args) {
    Fixture f;
    const Status status = f.Parse(std::move(args));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_EQ(error({"--model", "m", "--port", "70000"}), "--port: 70000 is not in [0, 65535]");
  EXPECT_EQ(error({"--model", "m", "--port", "x"}), "--port: 'x' is not an integer");
  EXPECT_EQ(error({"--model", "m", "--port", "99999999999999999999"}),
            "--port: '99999999999999999999' is not an integer");
  EXPECT_EQ(error({"--model", "m", "--fraction", "nan"}), "--fraction: 'nan' is not a number");
  EXPECT_EQ(error({"--model", "m", "--host", "h"}), "--host: 'h' is not one of 127.0.0.1, 0.0.0.0");
  EXPECT_EQ(error({}), "--model-path is required");
  EXPECT_NE(error({"--model", "m", "--bogus"}).find("--bogus"), std::string::npos);
  EXPECT_NE(error({"--model", "m", "--port"}).find("--port"), std::string::npos);
}

TEST(Args, AnOptionTakesOneWord) {
  std::string path;
  int64_t ranks = 1;
  OptionTable table("tern test", "A test.");
  table.Add("--path", &path, "PATH", "path").Positional();
  table.Add("--tp", &ranks, "N", "ranks");
  ASSERT_TRUE(table.Parse({"--tp", "2", "a"}).ok());
  EXPECT_EQ(path, "a");
  EXPECT_EQ(ranks, 2);
  EXPECT_FALSE(table.Parse({"a", "b"}).ok());
  EXPECT_FALSE(table.Parse({"--tp", "2", "a", "b"}).ok());
}

TEST(Args, CommandLineWinsOverTheConfigFile) {
  const std::string path = testing::TempDir() + "args_test.yaml";
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  write("model-path: m\nport: 1\nenable_metrics: true\nstop: [a, b]\nmax-total-tokens: 7\n");
  Fixture f;
  ASSERT_TRUE(f.Parse({"--config", path, "--port", "2"}).ok());
  EXPECT_EQ(f.port, 2);
  EXPECT_EQ(f.model, "m");
  EXPECT_TRUE(f.metrics);
  EXPECT_EQ(f.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(f.tokens, 7);
  for (const char* bad :
       {"no-such-option: 1\n", "port: [1\n", "- a\n", "port: {a: 1}\n", "port: x\n"}) {
    write(bad);
    Fixture g;
    const Status status = g.Parse({"--config", path});
    EXPECT_FALSE(status.ok()) << bad;
    EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
  }
  std::remove(path.c_str());
  Fixture h;
  EXPECT_EQ(h.Parse({"--config", path}).code(), StatusCode::kNotFound);
}

TEST(Args, HelpShowsEveryOption) {
  Fixture f;
  const std::string help = f.table.Help();
  for (const char* text : {"--model-path, --model DIR", "(default: 30000)", "one of: 127.0.0.1",
                           "--config FILE", "(required)"}) {
    EXPECT_NE(help.find(text), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tern
