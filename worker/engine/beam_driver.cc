#include "worker/engine/beam_driver.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "worker/text/beam_search.h"

namespace hearth {

// The sequences of one beam search. `running` is in the order of the search's beams.
struct BeamGroup {
  std::weak_ptr<Sequence> first;
  BeamSearch search;
  std::vector<std::weak_ptr<Sequence>> running = {};  // the search's sequences, including `first`
  std::vector<uint32_t> unused = {};                  // sample numbers free for new forks
  size_t stepped = 0;  // number of running beams whose logits of this step are computed
};

namespace {

// Captures `first` by pointer: it is alive during each step. The callback `stops` is not copied,
// because its owner may own the RequestState, which owns the search: a copy would be a reference
// cycle.
BeamSearch::Ends EndsOf(const Sequence* first, const ModelConfig& config) {
  BeamSearch::Ends ends;
  if (!first->request.ignore_eos) ends.tokens = config.eos_token_ids;
  ends.max_tokens = first->request.max_new_tokens;
  if (first->callbacks.stops != nullptr) {
    ends.stops = [first](absl::Span<const int32_t> tokens) {
      return first->callbacks.stops(tokens);
    };
  }
  return ends;
}

}  // namespace

absl::Status BeamDriver::Begin(const SequencePtr& first) {
  const auto group = std::make_shared<BeamGroup>(
      BeamGroup{first, BeamSearch(first->request.search, EndsOf(first.get(), model_->config()))});
  first->state->beams = group;
  group->running.push_back(first);
  for (uint32_t number = 1; number < first->request.sequences(); ++number) {
    group->unused.push_back(number);
  }
  if (absl::Status advanced = Advance(group.get()); !advanced.ok()) return advanced;
  answers_->HashLogits(first->answer.logits, first.get());
  keeper_->Keep(first.get(), planner_->cache());
  if (group->search.done()) {
    Finish(*group);
  } else {
    planner_->StartDecode(first->id);
  }
  return absl::OkStatus();
}

SequencePtr BeamDriver::Abandon(RequestState* state) {
  const std::shared_ptr<BeamGroup> group = std::exchange(state->beams, nullptr);
  assert(group != nullptr && group->first.lock() != nullptr);
  SequencePtr first = group->first.lock();
  for (const auto& beam : group->running) {
    const SequencePtr sequence = beam.lock();
    model_->Release(std::move(sequence->kv));
    if (sequence != first) planner_->RemoveFork(*first, sequence->id);
  }
  first->answer.generated = 0;
  return first;
}

SequencePtr BeamDriver::Registered(const SequencePtr& sequence) const {
  const std::shared_ptr<BeamGroup> group = sequence->state->beams;
  return group == nullptr ? sequence : group->first.lock();
}

absl::Status BeamDriver::AfterDecode(const SequencePtr& beam) {
  BeamGroup* const group = beam->state->beams.get();
  assert(group->stepped < group->running.size());
  if (++group->stepped < group->running.size()) return absl::OkStatus();
  if (absl::Status advanced = Advance(group); !advanced.ok()) return advanced;
  if (group->search.done()) Finish(*group);
  return absl::OkStatus();
}

absl::Status BeamDriver::Advance(BeamGroup* group) {
  group->stepped = 0;
  std::vector<std::vector<TokenLogprob>> likeliest;
  for (const auto& running : group->running) {
    GrowingAnswer& answer = running.lock()->answer;
    auto tokens = answer.sampler.Likeliest(answer.logits.values(), group->search.candidates());
    if (!tokens.ok()) return tokens.status();
    likeliest.push_back(*std::move(tokens));
  }
  assert(likeliest.size() == group->running.size() && !group->search.done());
  group->search.Advance(likeliest);
  return group->search.done() ? absl::OkStatus() : Reorder(group);
}

// Assigns sequences to the search's new beams. The first beam that extends a parent sequence keeps
// that sequence. Each further beam of the same parent gets a fork of it.
absl::Status BeamDriver::Reorder(BeamGroup* group) {
  const SequencePtr first = group->first.lock();
  std::vector<SequencePtr> parents;
  for (const auto& running : group->running) parents.push_back(running.lock());
  std::vector<char> kept(parents.size(), 0);
  for (const BeamSearch::Beam& beam : group->search.beams()) kept[beam.parent] = 1;
  // The request's first sequence must not be removed. If no beam extends it, swap its KV with the
  // KV of a sequence that a beam extends.
  const size_t own = std::find(parents.begin(), parents.end(), first) - parents.begin();
  assert(own < parents.size());
  if (kept[own] == 0) {
    const size_t other = std::find(kept.begin(), kept.end(), 1) - kept.begin();
    std::swap(parents[own]->kv, parents[other]->kv);
    std::swap(parents[own], parents[other]);
  }
  for (size_t i = 0; i < parents.size(); ++i) {
    if (kept[i] != 0) continue;
    model_->Release(std::move(parents[i]->kv));
    group->unused.push_back(parents[i]->sample);
    planner_->RemoveFork(*first, parents[i]->id);
  }
  group->running.clear();
  for (const BeamSearch::Beam& beam : group->search.beams()) {
    const SequencePtr& parent = parents[beam.parent];
    SequencePtr sequence = parent;
    if (std::exchange(kept[beam.parent], 0) == 0) {  // an earlier beam keeps the parent sequence
      assert(!group->unused.empty());
      sequence = planner_->Fork(first, group->unused.back());
      group->unused.pop_back();
      absl::StatusOr<std::unique_ptr<SequenceKv>> kv = model_->NewKv(0, sequence->kv_choice());
      if (!kv.ok()) return kv.status();
      model_->UseAdapter(sequence->request.adapter, kv->get());
      sequence->kv = *std::move(kv);
      model_->Fork(*parent->kv, sequence->kv.get());
    }
    sequence->answer.last_token = beam.tokens.back();
    sequence->answer.generated = static_cast<uint32_t>(beam.tokens.size());
    group->running.push_back(sequence);
  }
  return absl::OkStatus();
}

void BeamDriver::Finish(const BeamGroup& group) {
  assert(group.search.done() && group.first.lock() != nullptr);
  const BeamSearch::Hypothesis& best = group.search.best();
  const SequencePtr first = group.first.lock();
  first->state->ends[0].beam_score = best.score;
  const FinishReason reason = answers_->EmitAll(first.get(), best.tokens, best.end);
  for (const auto& beam : group.running) {
    const SequencePtr sequence = beam.lock();
    if (sequence != first) answers_->Dismiss(sequence.get());
  }
  answers_->Finish(first, reason);
}

}  // namespace hearth
