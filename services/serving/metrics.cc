#include "services/serving/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <cassert>
#include <limits>
#include <utility>

namespace hearth {
namespace {

// From a pool hit on a small model to a cold prompt of 100,000 tokens on a CPU, in seconds.
const prometheus::Histogram::BucketBoundaries kSecondsBuckets = {
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300};

}  // namespace

// Not in the anonymous namespace: Metrics::Rep has one, and GCC warns of that where files are
// compiled together.
// Samples of all sources, grouped by name as the text format requires.
class SourceCollector final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    std::map<std::string, prometheus::MetricFamily> families;
    for (const MetricSource& source : sources) {
      for (const MetricSample& sample : source()) Add(sample, &families[sample.name]);
    }
    for (const HistogramSource& source : histograms) {
      for (const HistogramSample& sample : source()) Add(sample, &families[sample.name]);
    }
    std::vector<prometheus::MetricFamily> result;
    result.reserve(families.size());
    for (auto& [name, family] : families) result.push_back(std::move(family));
    return result;
  }

  std::vector<MetricSource> sources;
  std::vector<HistogramSource> histograms;

 private:
  // A metric of the family, with the sample's labels and no value yet.
  template <typename Sample>
  static prometheus::ClientMetric& NewMetric(const Sample& sample, prometheus::MetricType type,
                                             prometheus::MetricFamily* family) {
    family->name = sample.name;
    family->help = sample.help;
    family->type = type;
    prometheus::ClientMetric& metric = family->metric.emplace_back();
    for (const auto& [name, value] : sample.labels) metric.label.push_back({name, value});
    return metric;
  }
  static void Add(const HistogramSample& sample, prometheus::MetricFamily* family) {
    auto& histogram = NewMetric(sample, prometheus::MetricType::Histogram, family).histogram;
    assert(sample.counts.size() == sample.bounds.size() + 1);
    uint64_t cumulative = 0;
    for (size_t i = 0; i < sample.counts.size(); ++i) {
      cumulative += sample.counts[i];
      const bool bounded = i < sample.bounds.size();
      histogram.bucket.push_back(
          {cumulative, bounded ? sample.bounds[i] : std::numeric_limits<double>::infinity()});
    }
    histogram.sample_count = cumulative;
    histogram.sample_sum = sample.sum;
  }
  static void Add(const MetricSample& sample, prometheus::MetricFamily* family) {
    if (sample.is_counter) {
      NewMetric(sample, prometheus::MetricType::Counter, family).counter.value = sample.value;
    } else {
      NewMetric(sample, prometheus::MetricType::Gauge, family).gauge.value = sample.value;
    }
  }
};

struct Metrics::Rep {
  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  std::shared_ptr<SourceCollector> sources = std::make_shared<SourceCollector>();
  prometheus::Family<prometheus::Histogram>* calls = nullptr;
  prometheus::Family<prometheus::Histogram>* generations = nullptr;
  std::map<std::string, HttpPage> pages;
  std::unique_ptr<HttpServer> server;  // last: it reads the others
};

Metrics::Metrics(const std::string& prefix) : rep_(std::make_unique<Rep>()) {
  rep_->calls = &prometheus::BuildHistogram()
                     .Name(prefix + "_rpc_seconds")
                     .Help("Time of finished RPCs, by method and status code.")
                     .Register(*rep_->registry);
  rep_->generations = &prometheus::BuildHistogram()
                           .Name(prefix + "_generation_seconds")
                           .Help("Parts of a generation: queue, fetch, prefill, ttft, total.")
                           .Register(*rep_->registry);
}

Metrics::~Metrics() = default;

void Metrics::AddSource(MetricSource source) {
  assert(rep_->server == nullptr);
  rep_->sources->sources.push_back(std::move(source));
}

void Metrics::AddHistograms(HistogramSource source) {
  assert(rep_->server == nullptr);
  rep_->sources->histograms.push_back(std::move(source));
}

void Metrics::RecordCall(const char* method, absl::StatusCode code, double seconds) {
  rep_->calls->Add({{"method", method}, {"code", absl::StatusCodeToString(code)}}, kSecondsBuckets)
      .Observe(seconds);
}

void Metrics::RecordGeneration(const std::string& part, double seconds) {
  rep_->generations->Add({{"part", part}}, kSecondsBuckets).Observe(seconds);
}

void Metrics::AddPage(const std::string& path, HttpPage page) {
  assert(rep_->server == nullptr);
  rep_->pages[path] = std::move(page);
}

absl::StatusOr<std::string> Metrics::Serve(const std::string& address,
                                           std::vector<std::string> hosts) {
  assert(rep_->server == nullptr);
  std::map<std::string, HttpPage> pages = rep_->pages;
  pages["/metrics"] = {"text/plain; version=0.0.4; charset=utf-8", [this] { return Render(); }};
  absl::StatusOr<std::unique_ptr<HttpServer>> server =
      ServePages(address, std::move(hosts), std::move(pages));
  if (!server.ok()) return server.status();
  rep_->server = *std::move(server);
  return rep_->server->address();
}

void Metrics::Stop() { rep_->server.reset(); }

std::string Metrics::Render() const {
  std::vector<prometheus::MetricFamily> families = rep_->registry->Collect();
  for (auto& family : rep_->sources->Collect()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace hearth
