#include "services/store/fleet_table.h"

#include <algorithm>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "proto/utf8.h"

namespace hearth {
namespace {

constexpr size_t kInstanceBytes = 16;
constexpr uint64_t kMaxGrowth = std::numeric_limits<uint32_t>::max();
constexpr uint64_t kMaxTokenNs = 1'000'000'000;
// kMaxGrowth tokens at the most time fit 64 bits.
static_assert(kMaxGrowth <= std::numeric_limits<uint64_t>::max() / kMaxTokenNs, "");

absl::Status TooLarge(const char* field, uint64_t most, uint64_t got) {
  return absl::InvalidArgumentError(
      absl::StrCat("report: ", field, " must be at most ", most, "; got ", got));
}

absl::Status CheckText(const char* field, const std::string& text) {
  if (text.size() <= FleetTable::kMaxNameBytes) return absl::OkStatus();
  return TooLarge(absl::StrCat("the bytes of ", field).c_str(), FleetTable::kMaxNameBytes,
                  text.size());
}

absl::Status CheckReport(const v1::ReportRequest& report) {
  if (report.instance().size() != kInstanceBytes) {
    return absl::InvalidArgumentError(absl::StrCat("report: instance must have ", kInstanceBytes,
                                                   " bytes; got ", report.instance().size()));
  }
  absl::Status status = CheckText("name", report.name());
  status.Update(CheckText("version", report.version()));
  status.Update(CheckText("device", report.device()));
  if (report.models_size() > FleetTable::kMaxModels) {
    status.Update(TooLarge("the number of models", FleetTable::kMaxModels, report.models_size()));
  }
  for (const v1::ServedModel& model : report.models()) {
    status.Update(CheckText("models.name", model.name()));
    status.Update(DigestFromBytes(model.fingerprint_digest()).status());
  }
  for (const uint64_t growth : {report.unasked_tokens(), report.unasked_held_tokens()}) {
    if (growth > kMaxGrowth) status.Update(TooLarge("a number of tokens", kMaxGrowth, growth));
  }
  return status;
}

// Returns the key of the first kWordsTokens tokens. REQUIRES: there are enough tokens.
Digest WordsKey(const Digest& fingerprint, absl::Span<const uint32_t> token_ids) {
  Sha256Stream stream;
  stream.Add(DigestBytes(fingerprint));
  stream.Add({reinterpret_cast<const char*>(token_ids.data()),
              FleetTable::kWordsTokens * sizeof(uint32_t)});
  return stream.SoFar();
}

}  // namespace

void FleetTable::ShowWords() {
  absl::MutexLock lock(&mutex_);
  shows_words_ = true;
}

bool FleetTable::shows_words() const {
  absl::MutexLock lock(&mutex_);
  return shows_words_;
}

bool FleetTable::MakeRoom(absl::Time now) {
  for (auto it = workers_.begin(); it != workers_.end();) {
    it = now - it->second.worker.seen < kForgotten ? std::next(it) : workers_.erase(it);
  }
  if (workers_.size() < kMaxWorkers) return true;
  const auto oldest = std::min_element(
      workers_.begin(), workers_.end(),
      [](const auto& a, const auto& b) { return a.second.worker.seen < b.second.worker.seen; });
  if (now - oldest->second.worker.seen < kConnected) return false;
  workers_.erase(oldest);
  return true;
}

absl::Status FleetTable::Take(const v1::ReportRequest& report, const Identity& caller,
                              std::string peer) {
  if (!caller.sees_all()) {
    return absl::PermissionDeniedError("report: only workers and administrators may call it");
  }
  if (absl::Status status = CheckReport(report); !status.ok()) return status;
  v1::ReportRequest kept = report;
  kept.DiscardUnknownFields();  // they may need a hundred times the bytes of the message
  absl::MutexLock lock(&mutex_);
  const absl::Time now = clock_->Now();
  const bool is_new = workers_.count(report.instance()) == 0;
  if (is_new && !MakeRoom(now)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("report: the table has ", kMaxWorkers, " connected workers"));
  }
  Entry& entry = workers_[report.instance()];
  if (is_new || report.sequence() > entry.sequence) {
    entry.sequence = report.sequence();
    counted_.unasked_tokens += report.unasked_tokens();
    counted_.unasked_held_tokens += report.unasked_held_tokens();
    counted_.saved_us +=
        report.unasked_held_tokens() * std::min(report.token_ns(), kMaxTokenNs) / 1000;
  }
  if (report.leaving()) {
    workers_.erase(report.instance());
  } else {
    entry.worker = {std::move(kept), caller.name, std::move(peer), now, absl::ZeroDuration(), true};
  }
  return absl::OkStatus();
}

void FleetTable::NoteWords(const Identity& caller, const Digest& fingerprint,
                           absl::Span<const uint32_t> token_ids, absl::string_view words) {
  if (words.empty() || words.size() > kMaxWordsBytes || !caller.sees_all()) return;
  if (token_ids.size() < kWordsTokens || !shows_words()) return;
  if (FindInvalidUtf8({words.data(), words.size()}).has_value()) return;
  const Digest key = WordsKey(fingerprint, token_ids);
  absl::MutexLock lock(&mutex_);
  const auto known = words_at_.find(key);
  if (known != words_at_.end()) {
    words_.splice(words_.begin(), words_, known->second);
    return;
  }
  if (words_.size() == kMaxWords) {
    words_at_.erase(words_.back().first);
    words_.pop_back();
  }
  words_.emplace_front(key, words);
  words_at_[key] = words_.begin();
}

FleetTotals FleetTable::Totals() const {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = clock_->Now();
  FleetTotals totals = counted_;
  std::set<absl::string_view> models;
  for (const auto& [instance, entry] : workers_) {
    if (now - entry.worker.seen >= kConnected) continue;
    ++totals.workers;
    for (const v1::ServedModel& model : entry.worker.report.models()) {
      models.insert(model.fingerprint_digest());
    }
  }
  totals.models = models.size();
  return totals;
}

std::vector<FleetWorker> FleetTable::Workers() const {
  std::vector<FleetWorker> workers;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_->Now();
    for (const auto& [instance, entry] : workers_) {
      const absl::Duration age = now - entry.worker.seen;
      if (age >= kForgotten) continue;
      workers.push_back(entry.worker);
      workers.back().age = age;
      workers.back().is_connected = age < kConnected;
    }
  }
  std::stable_sort(workers.begin(), workers.end(),
                   [](const auto& a, const auto& b) { return a.report.name() < b.report.name(); });
  return workers;
}

std::string FleetTable::Words(const Digest& fingerprint,
                              absl::Span<const uint32_t> token_ids) const {
  if (token_ids.size() < kWordsTokens) return "";
  const Digest key = WordsKey(fingerprint, token_ids);
  absl::MutexLock lock(&mutex_);
  const auto known = words_at_.find(key);
  return known == words_at_.end() ? "" : known->second->second;
}

}  // namespace hearth
