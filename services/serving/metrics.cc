#include "services/serving/metrics.h"

#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <cassert>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/serving/http/http_server.h"

namespace hearth {
namespace {

// Buckets in seconds, from a pool hit on a small model to a cold prompt of 100,000 tokens on a CPU.
const prometheus::Histogram::BucketBoundaries kSecondsBuckets = {
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300};

constexpr char kGenerationHelp[] =
    "Duration of a generation, by part: queue, fetch, prefill, ttft, total; token: mean time "
    "between its tokens.";

// Memory for all connections of the metrics port. A page is about 100 KiB.
constexpr uint64_t kBudgetBytes = uint64_t{8} << 20;

// Limits for Prometheus and a few people: their requests arrive fast and have no body.
HttpLimits PageLimits() {
  HttpLimits limits;
  limits.connections = 64;
  limits.header_time = absl::Seconds(1);
  limits.request_time = absl::Seconds(1);
  limits.body_bytes = 0;
  return limits;
}

// Adds a metric without a value to the family `sample.name`, with the sample's labels.
template <typename Sample>
prometheus::ClientMetric* AddMetric(const Sample& sample, prometheus::MetricType type,
                                    std::map<std::string, prometheus::MetricFamily>* families) {
  prometheus::MetricFamily& family = (*families)[sample.name];
  family.name = sample.name;
  family.help = sample.help;
  family.type = type;
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  for (const auto& [name, value] : sample.labels) metric.label.push_back({name, value});
  return &metric;
}

void AddHistogram(const HistogramSample& sample, prometheus::ClientMetric::Histogram* histogram) {
  assert(sample.counts.size() == sample.bounds.size() + 1);
  uint64_t cumulative = 0;
  for (size_t i = 0; i < sample.counts.size(); ++i) {
    cumulative += sample.counts[i];
    const bool bounded = i < sample.bounds.size();
    histogram->bucket.push_back(
        {cumulative, bounded ? sample.bounds[i] : std::numeric_limits<double>::infinity()});
  }
  histogram->sample_count = cumulative;
  histogram->sample_sum = sample.sum;
}

void Refuse(const absl::Status& why, HttpAnswer* answer) {
  HttpHeaders headers = PageHeaders("text/plain");
  const bool is_unknown = absl::IsUnauthenticated(why);
  if (is_unknown) headers.emplace_back("WWW-Authenticate", "Bearer");
  answer->Send(is_unknown ? 401 : 403, headers, absl::StrCat(why.message(), "\n"));
}

}  // namespace

struct Metrics::Rep {
  void Answer(const HttpRequest& request, HttpAnswer* answer) const {
    if (request.method != "GET" && request.method != "HEAD") {
      return answer->Send(405, PageHeaders("text/plain"), "only GET and HEAD are supported\n");
    }
    const auto page = pages.find(request.path);
    if (page == pages.end()) return answer->Send(404, PageHeaders("text/plain"), "no such page\n");
    if (page->second.check != nullptr) {
      const absl::Status status = page->second.check(request);
      if (!status.ok()) return Refuse(status, answer);
    }
    answer->Send(200, PageHeaders(page->second.content_type), page->second.make());
  }

  prometheus::Registry registry;
  std::vector<MetricSource> sources;
  std::vector<HistogramSource> histograms;
  prometheus::Family<prometheus::Histogram>* calls = nullptr;
  prometheus::Family<prometheus::Histogram>* generations = nullptr;
  std::map<std::string, HttpPage> pages;
  std::unique_ptr<HttpServer> server;  // last member: its thread reads the other members
};

Metrics::Metrics(const std::string& prefix) : rep_(std::make_unique<Rep>()) {
  rep_->calls = &prometheus::BuildHistogram()
                     .Name(prefix + "_rpc_seconds")
                     .Help("Duration of finished RPCs, by method and status code.")
                     .Register(rep_->registry);
  rep_->generations = &prometheus::BuildHistogram()
                           .Name(prefix + "_generation_seconds")
                           .Help(kGenerationHelp)
                           .Register(rep_->registry);
}

Metrics::~Metrics() = default;

void Metrics::AddSource(MetricSource source) {
  assert(rep_->server == nullptr);
  rep_->sources.push_back(std::move(source));
}

void Metrics::AddHistograms(HistogramSource source) {
  assert(rep_->server == nullptr);
  rep_->histograms.push_back(std::move(source));
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
  rep_->pages["/metrics"] = {"text/plain; version=0.0.4; charset=utf-8",
                             [this] { return Render(); }};
  HttpServer::Options options;
  options.listen = address;
  options.limits = PageLimits();
  options.budget_bytes = kBudgetBytes;
  options.hosts = std::move(hosts);
  options.hosts_flag = "--metrics-hosts";
  auto server = HttpServer::Start(
      options,
      [rep = rep_.get()](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
        rep->Answer(request, answer.get());
      });
  if (!server.ok()) {
    return absl::Status(server.status().code(),
                        absl::StrCat("metrics-", server.status().message()));
  }
  rep_->server = *std::move(server);
  return rep_->server->address();
}

void Metrics::Stop() { rep_->server.reset(); }

std::string Metrics::Render() const {
  std::map<std::string, prometheus::MetricFamily>
      by_name;  // the text format needs the samples of one name together
  for (const MetricSource& source : rep_->sources) {
    for (const MetricSample& sample : source()) {
      if (sample.is_counter) {
        AddMetric(sample, prometheus::MetricType::Counter, &by_name)->counter.value = sample.value;
      } else {
        AddMetric(sample, prometheus::MetricType::Gauge, &by_name)->gauge.value = sample.value;
      }
    }
  }
  for (const HistogramSource& source : rep_->histograms) {
    for (const HistogramSample& sample : source()) {
      AddHistogram(sample,
                   &AddMetric(sample, prometheus::MetricType::Histogram, &by_name)->histogram);
    }
  }
  std::vector<prometheus::MetricFamily> families = rep_->registry.Collect();
  for (auto& [name, family] : by_name) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace hearth
