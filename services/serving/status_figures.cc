#include "services/serving/status_figures.h"

#include <cassert>

namespace hearth {

extern const char kStatusPage[];  // text of status_page.html, which shows /status.json

StatusFigures::StatusFigures(std::string program, std::string version, Source source, Clock* clock)
    : program_(std::move(program)),
      version_(std::move(version)),
      source_(std::move(source)),
      clock_(clock != nullptr ? clock : &system_clock_),
      start_(clock_->Now()),
      last_(source_.totals()) {}

void StatusFigures::AddPages(Metrics* metrics) {
  metrics->AddPage("/status.json", {"application/json", [this] { return JsonText(); }});
  metrics->AddPage("/", {"text/html; charset=utf-8", [] { return std::string(kStatusPage); }});
}

void StatusFigures::Start() {
  assert(sampler_ == nullptr);
  sampler_ = std::make_unique<RepeatingThread>([this, is_first = true]() mutable {
    if (!is_first) Sample();
    is_first = false;
    return kStep;
  });
}

Json StatusFigures::Growth(const Totals& now) const {
  assert(now.size() == last_.size());
  Json growth = Json::object();
  for (size_t i = 0; i < now.size(); ++i) growth[now[i].first] = now[i].second - last_[i].second;
  return growth;
}

void StatusFigures::Sample() {
  absl::MutexLock lock(&mutex_);
  Totals now = source_.totals();
  steps_.push_back(Growth(now));
  if (steps_.size() > kSteps) steps_.pop_front();
  last_ = std::move(now);
}

std::string StatusFigures::JsonText() {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = clock_->Now();
  if (made_.empty() || now - made_at_ >= absl::Seconds(1)) {
    made_ = Make();
    made_at_ = now;
  }
  return made_;
}

std::string StatusFigures::Make() {
  Json json;
  json["program"] = program_;
  json["version"] = version_;
  json["uptime_s"] = absl::ToDoubleSeconds(clock_->Now() - start_);
  json["step_s"] = absl::ToDoubleSeconds(kStep);
  json["steps"] = Json(std::vector<Json>(steps_.begin(), steps_.end()));
  json["step_now"] = Growth(source_.totals());
  source_.add(&json);
  return JsonLine(json);
}

}  // namespace hearth
