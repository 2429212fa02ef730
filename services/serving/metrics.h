// Metrics: serves a server's counters to Prometheus over HTTP, and pages for people.
//
// Sources read the counters of the store and the engine when Prometheus asks. Only the times of
// RPCs and generations are kept here, as histograms. Pages are made for each request; only GET and
// HEAD are supported. Thread safety: all methods from any thread. Sources and pages are called on
// the HTTP server's thread, one at a time. Ownership: their data must outlive the Metrics.
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

struct HttpRequest;

using MetricLabels = std::map<std::string, std::string>;

// One value of a metric, with labels. Names of counters end in _total.
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
// One histogram. counts[i]: number of observations above bounds[i-1] and at most bounds[i]. The
// last count is of observations above all bounds.
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
  // Decides whether a caller gets the page; an error is the answer: 401 for kUnauthenticated, else
  // 403. Null: everyone gets it.
  std::function<absl::Status(const HttpRequest& request)> check = nullptr;
};

class Metrics {
 public:
  // `prefix`: beginning of the histograms' names, "hearth_store" or "hearth_worker".
  explicit Metrics(const std::string& prefix);
  ~Metrics();

  // REQUIRES: Serve was not called yet.
  void AddSource(MetricSource source);
  void AddHistograms(HistogramSource source);
  // Adds a page in addition to /metrics. REQUIRES: Serve was not called yet.
  void AddPage(const std::string& path, HttpPage page);
  void RecordCall(const char* method, absl::StatusCode code, double seconds);
  // Adds an observation to the histogram of durations. `part`: "queue", "fetch", "prefill", "ttft"
  // or "total".
  void RecordGeneration(const std::string& part, double seconds);

  // Serves /metrics and the pages on `address`, "host:port"; with port 0 the system chooses the
  // port. `hosts`: host names that a request may name in addition to the server's own (HostRule).
  // Returns "host:port" with the actual port. kUnavailable names the address if listening fails.
  absl::StatusOr<std::string> Serve(const std::string& address,
                                    std::vector<std::string> hosts = {});
  // Ends Serve. When Stop returns, no source or page is being read, and the data that they use may
  // be destroyed. May be called without Serve, and repeatedly.
  void Stop();
  // Returns the text of /metrics.
  std::string Render() const;

 private:
  struct Rep;
  const std::unique_ptr<Rep> rep_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_METRICS_H_
