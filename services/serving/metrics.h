// Metrics: a server's counters, served over HTTP to Prometheus, beside pages for people.
//
// Sources read the counters of the store and the engine when Prometheus asks; only the times of
// RPCs and generations are kept here, as histograms. Pages are made for each request; GET and HEAD
// only. Thread safety: all methods from any thread. Sources and pages are called on the HTTP
// server's thread, one at a time. Ownership: the data that they read must outlive the Metrics.
#ifndef HEARTH_SERVICES_SERVING_METRICS_H_
#define HEARTH_SERVICES_SERVING_METRICS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hearth {

using MetricLabels = std::map<std::string, std::string>;

// One number under one name. Counters' names end in _total.
struct MetricSample {
  static MetricSample Gauge(std::string name, std::string help, double value,
                            MetricLabels labels = {}) {
    return {std::move(name), std::move(help), false, std::move(labels), value};
  }
  static MetricSample Count(std::string name, std::string help, double value,
                            MetricLabels labels = {}) {
    return {std::move(name), std::move(help), true, std::move(labels), value};
  }

  std::string name;
  std::string help;
  bool is_counter = false;
  MetricLabels labels;
  double value = 0;
};
// One histogram: counts[i] observations lie above bounds[i-1] and at or below bounds[i], the last
// ones above all bounds.
struct HistogramSample {
  std::string name;
  std::string help;
  MetricLabels labels;
  std::vector<double> bounds;
  std::vector<uint64_t> counts;
  double sum = 0;
};
using HistogramSource = std::function<std::vector<HistogramSample>()>;
using MetricSource = std::function<std::vector<MetricSample>()>;

struct HttpPage {
  std::string content_type;
  std::function<std::string()> make;
};

class Metrics {
 public:
  // `prefix` begins the histograms' names: "hearth_store" or "hearth_worker".
  explicit Metrics(const std::string& prefix);
  ~Metrics();

  // REQUIRES: before Serve.
  void AddSource(MetricSource source);
  void AddHistograms(HistogramSource source);
  // Adds a page beside /metrics. REQUIRES: before Serve.
  void AddPage(const std::string& path, HttpPage page);
  void RecordCall(const char* method, absl::StatusCode code, double seconds);
  // One of the parts of a generation: "queue", "fetch", "prefill", "ttft", "total".
  void RecordGeneration(const std::string& part, double seconds);

  // Serves /metrics and the pages on "host:port"; port 0 lets the system choose. `hosts`: more
  // names that a request's Host may have (HostRule). Returns "host:port". kUnavailable naming
  // the address when it cannot be bound.
  absl::StatusOr<std::string> Serve(const std::string& address,
                                    std::vector<std::string> hosts = {});
  // Ends Serve: returns when no source is being read, so that their data may be destroyed. May be
  // called without Serve, and again.
  void Stop();
  // The page as Prometheus would read it.
  std::string Render() const;

 private:
  struct Rep;
  const std::unique_ptr<Rep> rep_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_METRICS_H_
