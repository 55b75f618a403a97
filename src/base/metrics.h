// Metrics: named counters, gauges and histograms in Prometheus' text format.
// The one wrapper around prometheus-cpp; names and labels follow SGLang
// ("sglang:num_running_reqs"). Thread: any; updates are atomic (a histogram takes a short lock).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tern {

using MetricLabels = std::map<std::string, std::string>;

class Counter {
 public:
  virtual ~Counter() = default;
  // REQUIRES: by >= 0
  virtual void Add(double by = 1) = 0;
  virtual double value() const = 0;
};

class Gauge {
 public:
  virtual ~Gauge() = default;
  virtual void Set(double value) = 0;
  virtual double value() const = 0;
};

class Histogram {
 public:
  virtual ~Histogram() = default;
  virtual void Observe(double value) = 0;
};

// Owns its metrics: references stay valid as long as the registry.
class MetricRegistry {
 public:
  // `labels` are put on every metric.
  explicit MetricRegistry(MetricLabels labels = {});
  ~MetricRegistry();

  // The same name and labels give the same metric: at any time, by its address.
  Counter& AddCounter(const std::string& name, const std::string& help, MetricLabels labels = {});
  Gauge& AddGauge(const std::string& name, const std::string& help, MetricLabels labels = {});
  // `bounds`: upper bucket bounds, ascending.
  Histogram& AddHistogram(const std::string& name, const std::string& help,
                          std::vector<double> bounds, MetricLabels labels = {});

  // The whole registry in the text exposition format, version 0.0.4.
  std::string Render() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tern
