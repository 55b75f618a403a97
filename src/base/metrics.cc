#include "base/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <sstream>

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

}  // namespace

struct MetricRegistry::Impl {
  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Merge};
  MetricLabels labels;
  mutable Mutex mutex;
  std::vector<std::unique_ptr<Counter>> counters TERN_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<Gauge>> gauges TERN_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<Histogram>> histograms TERN_GUARDED_BY(mutex);

  MetricLabels Merge(MetricLabels extra) const {
    extra.insert(labels.begin(), labels.end());
    return extra;
  }
};

MetricRegistry::MetricRegistry(MetricLabels labels) : impl_(std::make_unique<Impl>()) {
  impl_->labels = std::move(labels);
}
MetricRegistry::~MetricRegistry() = default;

Counter& MetricRegistry::AddCounter(const std::string& name, const std::string& help,
                                    MetricLabels labels) {
  auto& family = prometheus::BuildCounter().Name(name).Help(help).Register(impl_->registry);
  MutexLock lock(impl_->mutex);
  impl_->counters.push_back(
      std::make_unique<CounterImpl>(family.Add(impl_->Merge(std::move(labels)))));
  return *impl_->counters.back();
}

Gauge& MetricRegistry::AddGauge(const std::string& name, const std::string& help,
                                MetricLabels labels) {
  auto& family = prometheus::BuildGauge().Name(name).Help(help).Register(impl_->registry);
  MutexLock lock(impl_->mutex);
  impl_->gauges.push_back(std::make_unique<GaugeImpl>(family.Add(impl_->Merge(std::move(labels)))));
  return *impl_->gauges.back();
}

Histogram& MetricRegistry::AddHistogram(const std::string& name, const std::string& help,
                                        std::vector<double> bounds, MetricLabels labels) {
  auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(impl_->registry);
  MutexLock lock(impl_->mutex);
  impl_->histograms.push_back(std::make_unique<HistogramImpl>(
      family.Add(impl_->Merge(std::move(labels)), std::move(bounds))));
  return *impl_->histograms.back();
}

std::string MetricRegistry::Render() const {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, impl_->registry.Collect());
  return out.str();
}

}  // namespace tern
