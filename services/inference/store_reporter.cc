#include "services/inference/store_reporter.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <random>
#include <string>
#include <utility>

#include "proto/utf8.h"
#include "services/serving/logging.h"

namespace hearth {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(1);
constexpr size_t kMaxNameBytes = 128;  // a store refuses longer names
constexpr int kMaxModels = 16;         // a store refuses more

std::string MakeInstance() {
  std::random_device random;
  std::string bytes(16, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

uint64_t GrowthOf(uint64_t total, uint64_t answered) {
  return std::min<uint64_t>(total - answered, std::numeric_limits<uint32_t>::max());
}

// Cuts the text to kMaxNameBytes between two characters, and before a byte that is not UTF-8.
void Shorten(std::string* text) {
  text->resize(std::min(text->size(), kMaxNameBytes));
  text->resize(FindInvalidUtf8(*text).value_or(text->size()));
}

// Returns whether the store's answer will stay the same until the store or its files are changed.
bool IsFinal(const absl::Status& status) {
  return absl::IsUnimplemented(status) || absl::IsPermissionDenied(status) ||
         absl::IsInvalidArgument(status);
}

}  // namespace

StoreReporter::StoreReporter(v1::ReportRequest names, Fill fill, Call call)
    : names_(std::move(names)), fill_(std::move(fill)), call_(std::move(call)) {
  names_.set_instance(MakeInstance());
  Shorten(names_.mutable_name());
  Shorten(names_.mutable_version());
  Shorten(names_.mutable_device());
  while (names_.models_size() > kMaxModels) names_.mutable_models()->RemoveLast();
  for (v1::ServedModel& model : *names_.mutable_models()) Shorten(model.mutable_name());
}

void StoreReporter::Start() {
  assert(thread_ == nullptr);
  thread_ = std::make_unique<RepeatingThread>([this] { return ReportOnce(); });
}

void StoreReporter::Stop() {
  if (thread_ == nullptr) return;
  thread_.reset();
  if (is_pending_ && !is_refused_) ReportOnce();  // the store may be able to answer now
  if (sequence_ > 0 && !is_pending_) ReportOnce(/*is_leaving=*/true);
}

absl::Duration StoreReporter::ReportOnce(bool is_leaving) {
  v1::ReportRequest report = names_;
  fill_(&report);
  if (!is_pending_) {
    is_pending_ = true;
    ++sequence_;
    pending_ = {GrowthOf(report.unasked_tokens(), answered_.tokens),
                GrowthOf(report.unasked_held_tokens(), answered_.held_tokens)};
  }
  report.set_sequence(sequence_);
  report.set_unasked_tokens(pending_.tokens);
  report.set_unasked_held_tokens(pending_.held_tokens);
  report.set_leaving(is_leaving);
  const absl::Status status = call_(report, kTimeout).status();
  if (status.ok()) {
    is_pending_ = false;
    answered_.tokens += pending_.tokens;
    answered_.held_tokens += pending_.held_tokens;
  }
  const bool is_refused = IsFinal(status);
  // An older store is no fault.
  if (is_refused && !is_refused_ && !absl::IsUnimplemented(status)) {
    Log(LogLevel::kWarning, "the store does not list this worker on its status page",
        {{"reason", std::string(status.message())}});
  }
  is_refused_ = is_refused;
  return is_refused ? kRefusedPause : kPeriod;
}

}  // namespace hearth
