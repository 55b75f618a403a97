#include "base/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <sstream>
#include <utility>

#include "base/mutex.h"

namespace tern {
namespace {

struct CounterImpl final : Counter {
  explicit CounterImpl(prometheus::Counter& c) : counter(c) {}
  void Add(double by) override { counter.Increment(by); }
  double value() const override { return counter.Value(); }
  prometheus::Counter& counter;
};

struct GaugeImpl final : Gauge {
  explicit GaugeImpl(prometheus::Gauge& g) : gauge(g) {}
  void Set(double value) override { gauge.Set(value); }
  double value() const override { return gauge.Value(); }
  prometheus::Gauge& gauge;
};

struct HistogramImpl final : Histogram {
  explicit HistogramImpl(prometheus::Histogram& h) : histogram(h) {}
  void Observe(double value) override { histogram.Observe(value); }
  prometheus::Histogram& histogram;
};

using MetricKey = std::pair<std::string, MetricLabels>;

}  // namespace

struct MetricRegistry::Impl {
  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Merge};
  MetricLabels labels;
  mutable Mutex mutex;
  // A map's elements stay where they are.
  std::map<MetricKey, CounterImpl> counters TERN_GUARDED_BY(mutex);
  std::map<MetricKey, GaugeImpl> gauges TERN_GUARDED_BY(mutex);
  std::map<MetricKey, HistogramImpl> histograms TERN_GUARDED_BY(mutex);

  // The metric of that name and labels in `metrics`; made by `make(labels)` the first time.
  template <class Map, class Make>
  auto& FindOrMake(Map& metrics, const std::string& name, MetricLabels extra, const Make& make)
      TERN_REQUIRES(mutex) {
    extra.insert(labels.begin(), labels.end());
    MetricKey key(name, std::move(extra));
    const auto found = metrics.find(key);
    if (found != metrics.end()) return found->second;
    auto& made = make(key.second);
    return metrics.emplace(std::move(key), made).first->second;
  }
};

MetricRegistry::MetricRegistry(MetricLabels labels) : impl_(std::make_unique<Impl>()) {
  impl_->labels = std::move(labels);
}
MetricRegistry::~MetricRegistry() = default;

Counter& MetricRegistry::AddCounter(const std::string& name, const std::string& help,
                                    MetricLabels labels) {
  MutexLock lock(impl_->mutex);
  const auto make = [&](const MetricLabels& all) -> prometheus::Counter& {
    return prometheus::BuildCounter().Name(name).Help(help).Register(impl_->registry).Add(all);
  };
  return impl_->FindOrMake(impl_->counters, name, std::move(labels), make);
}

Gauge& MetricRegistry::AddGauge(const std::string& name, const std::string& help,
                                MetricLabels labels) {
  MutexLock lock(impl_->mutex);
  const auto make = [&](const MetricLabels& all) -> prometheus::Gauge& {
    return prometheus::BuildGauge().Name(name).Help(help).Register(impl_->registry).Add(all);
  };
  return impl_->FindOrMake(impl_->gauges, name, std::move(labels), make);
}

Histogram& MetricRegistry::AddHistogram(const std::string& name, const std::string& help,
                                        std::vector<double> bounds, MetricLabels labels) {
  MutexLock lock(impl_->mutex);
  const auto make = [&](const MetricLabels& all) -> prometheus::Histogram& {
    auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(impl_->registry);
    return family.Add(all, std::move(bounds));
  };
  return impl_->FindOrMake(impl_->histograms, name, std::move(labels), make);
}

std::string MetricRegistry::Render() const {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, impl_->registry.Collect());
  return out.str();
}

}  // namespace tern
