#include "services/inference/calls/recent_answers.h"

#include <algorithm>
#include <cassert>
#include <map>

#include "proto/restore_rule.h"

namespace hearth {
namespace {

uint64_t WeightOf(const RecentAnswer& answer) {
  return std::max(answer.most_tokens(), RecentAnswers::kMinTokens);
}

EngineRequest WithoutGrammar(EngineRequest request) {
  request.grammar.reset();
  return request;
}

}  // namespace

RecentAnswer::RecentAnswer(EngineRequest request)
    : grammar_(request.grammar == nullptr ? nullptr : request.grammar->spec()),
      request_(WithoutGrammar(std::move(request))) {}

void RecentAnswer::Add(int32_t token) {
  absl::MutexLock lock(&mutex_);
  assert(generated_.size() < request_.max_new_tokens);  // most_tokens() counts them from the start
  generated_.push_back(token);
}

EngineRequest RecentAnswer::Rest() const {
  EngineRequest rest = request_;
  absl::MutexLock lock(&mutex_);
  rest.token_ids.insert(rest.token_ids.end(), generated_.begin(), generated_.end());
  rest.first_draw += generated_.size();
  return rest;
}

std::shared_ptr<RecentAnswer> RecentAnswers::Begin(const EngineRequest& request) {
  if (request.request_id.empty()) return nullptr;
  const auto answer = std::make_shared<RecentAnswer>(request);
  if (answer->most_tokens() > kMaxPromptTokens) return nullptr;
  absl::MutexLock lock(&mutex_);
  const auto same = At(request.tenant, request.request_id);
  if (same != answers_.end()) Remove(same);
  answers_.push_back(answer);
  tokens_ += WeightOf(*answer);
  while (tokens_ > kMaxTokens) Remove(OldestOfLargestTenant());
  return answer;
}

std::shared_ptr<RecentAnswer> RecentAnswers::Find(const std::string& tenant,
                                                  const std::string& request_id) const {
  absl::MutexLock lock(&mutex_);
  const auto answer = At(tenant, request_id);
  return answer == answers_.end() ? nullptr : *answer;
}

RecentAnswers::Answers::const_iterator RecentAnswers::At(const std::string& tenant,
                                                         const std::string& request_id) const {
  mutex_.AssertHeld();
  return std::find_if(answers_.begin(), answers_.end(), [&](const auto& answer) {
    return answer->request().tenant == tenant && answer->request().request_id == request_id;
  });
}

void RecentAnswers::Remove(Answers::const_iterator answer) {
  mutex_.AssertHeld();
  assert(tokens_ >= WeightOf(**answer));
  tokens_ -= WeightOf(**answer);
  answers_.erase(answer);
}

RecentAnswers::Answers::const_iterator RecentAnswers::OldestOfLargestTenant() const {
  mutex_.AssertHeld();
  assert(!answers_.empty());
  std::map<std::string, uint64_t> tokens;
  for (const auto& answer : answers_) tokens[answer->request().tenant] += WeightOf(*answer);
  uint64_t most = 0;
  for (const auto& [tenant, count] : tokens) most = std::max(most, count);
  return std::find_if(answers_.begin(), answers_.end(),
                      [&](const auto& answer) { return tokens[answer->request().tenant] == most; });
}

}  // namespace hearth
