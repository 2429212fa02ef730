#include "worker/text/logit_rules.h"

#include <algorithm>
#include <cassert>
#include <cfloat>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// The condition is false for NaN, so NaN is refused.
absl::Status CheckRange(const char* name, float value, float least, float most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("sampling.", name, ": is ", value, "; must be in [", least, ", ", most, "]"));
}

absl::Status CheckId(const char* name, int32_t id, int32_t vocab_size) {
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("sampling.", name, ": ", id, " is not in [0, ", vocab_size, ")"));
}

}  // namespace

absl::Status TokenRules::Validate() const {
  absl::Status status = CheckRange("repetition_penalty", repetition_penalty, 0.1F, 10);
  if (status.ok()) status = CheckRange("presence_penalty", presence_penalty, -2, 2);
  if (status.ok()) status = CheckRange("frequency_penalty", frequency_penalty, -2, 2);
  for (const auto& [id, bias] : logit_bias) {
    if (status.ok()) status = CheckRange("logit_bias", bias, -100, 100);
  }
  const std::pair<const char*, size_t> lists[] = {{"logit_bias", logit_bias.size()},
                                                  {"stop_token_ids", stop_ids.size()},
                                                  {"bad_token_ids", bad_ids.size()}};
  for (const auto& [name, size] : lists) {
    if (!status.ok() || size <= kMaxListedTokens) continue;
    status = absl::InvalidArgumentError(absl::StrCat("sampling.", name, ": has ", size,
                                                     " tokens; the limit is ", kMaxListedTokens));
  }
  return status;
}

absl::Status TokenRules::CheckIds(int32_t vocab_size, size_t eos) const {
  absl::Status status;
  for (const auto& [id, bias] : logit_bias) status.Update(CheckId("logit_bias", id, vocab_size));
  for (const int32_t id : stop_ids) status.Update(CheckId("stop_token_ids", id, vocab_size));
  for (const int32_t id : bad_ids) status.Update(CheckId("bad_token_ids", id, vocab_size));
  if (!status.ok() || !AreBarring()) return status;
  if (bad_ids.size() + stop_ids.size() + eos < static_cast<size_t>(vocab_size)) return status;
  return absl::InvalidArgumentError("sampling.bad_token_ids: must leave at least one token");
}

LogitRules::LogitRules(const TokenRules& rules, absl::Span<const int32_t> eos,
                       absl::Span<const int32_t> prompt, uint64_t answered)
    : rules_(rules), answered_(answered) {
  for (const auto& [id, bias] : rules_.logit_bias) At(id).bias = bias;
  for (const int32_t id : rules_.bad_ids) At(id).bad = true;
  if (rules_.min_tokens > 0) {
    for (const int32_t id : eos) At(id).ends = true;
    for (const int32_t id : rules_.stop_ids) At(id).ends = true;
  }
  if (!rules_.HavePenalties()) return;
  const size_t begin = prompt.size() - std::min<uint64_t>(prompt.size(), answered);
  for (size_t i = 0; i < begin && rules_.repetition_penalty != 1; ++i) At(prompt[i]).seen = true;
  for (size_t i = begin; i < prompt.size(); ++i) Count(prompt[i]);
}

LogitRules::Entry& LogitRules::At(int32_t id) {
  assert(id >= 0);
  const auto [place, is_new] = places_.try_emplace(id, entries_.size());
  if (is_new) entries_.push_back(Entry{id});
  return entries_[place->second];
}

void LogitRules::Count(int32_t id) {
  Entry& entry = At(id);
  entry.seen = true;
  ++entry.count;
}

void LogitRules::Follow(absl::Span<const int32_t> answer) {
  assert(answer.size() >= followed_);
  for (; followed_ < answer.size(); ++followed_) {
    if (rules_.HavePenalties()) Count(answer[followed_]);
  }
}

float LogitRules::Changed(const Entry& entry, float logit) const {
  if (entry.bad || (entry.ends && answered_ + followed_ < rules_.min_tokens)) return -FLT_MAX;
  logit += entry.bias;
  if (entry.seen) {
    logit = logit < 0 ? logit * rules_.repetition_penalty : logit / rules_.repetition_penalty;
  }
  if (entry.count > 0) {
    logit -= rules_.frequency_penalty * static_cast<float>(entry.count);
    logit -= rules_.presence_penalty;
  }
  return logit;
}

void LogitRules::Apply(absl::Span<float> logits) {
  for (Entry& entry : entries_) {
    assert(static_cast<size_t>(entry.id) < logits.size());
    float& logit = logits[static_cast<size_t>(entry.id)];
    entry.logit = logit;
    logit = Changed(entry, logit);
  }
}

void LogitRules::Restore(absl::Span<float> logits) const {
  for (const Entry& entry : entries_) logits[static_cast<size_t>(entry.id)] = entry.logit;
}

}  // namespace hearth
