#include "worker/engine/sequence.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace hearth {
namespace {

PrefixRequest PrefixOf(const EngineRequest& request, std::vector<uint32_t> text) {
  PrefixRequest prefix;
  prefix.token_ids = std::move(text);
  prefix.cuts = request.breakpoints;
  prefix.tenant = request.tenant;
  prefix.adapter = request.adapter;
  prefix.request_id = request.request_id;
  prefix.traceparent = request.traceparent;
  prefix.stop = std::make_shared<CallStop>();
  return prefix;
}

// Returns the request of sample `sample`: the fields that decoding reads.
EngineRequest SampleOf(const EngineRequest& request, uint32_t sample) {
  EngineRequest own;
  own.tenant = request.tenant;
  own.adapter = request.adapter;
  own.request_id = request.request_id;
  own.traceparent = request.traceparent;
  own.sampling = request.sampling;
  own.sampling.seed = SeedOfSample(request.sampling.seed, sample);
  own.grammar = request.grammar;
  own.first_draw = request.first_draw;
  own.max_new_tokens = request.max_new_tokens;
  own.ignore_eos = request.ignore_eos;
  own.hash_logits = request.hash_logits;
  own.cache = request.reads() ? CacheMode::kRead : CacheMode::kOff;
  own.kv = request.kv;
  own.speculate = request.speculate;
  own.deadline = request.deadline;
  return own;
}

// Merges the outcomes of two publishes: the union of the stored boundaries, and the weaker
// durability.
void AddOutcome(const PublishOutcome& more, PublishOutcome* all) {
  if (all->boundaries.empty()) {
    all->durable = more.durable;
    if (!more.boundaries.empty() && all->note == kNothingToKeep) all->note.clear();
  } else if (!more.boundaries.empty()) {
    all->durable = std::min(all->durable, more.durable);
  }
  all->published_tokens = std::max(all->published_tokens, more.published_tokens);
  all->bytes_sent += more.bytes_sent;
  for (const uint32_t boundary : more.boundaries) {
    const auto place = std::lower_bound(all->boundaries.begin(), all->boundaries.end(), boundary);
    if (place != all->boundaries.end() && *place == boundary) continue;
    all->boundaries.insert(place, boundary);
  }
  const bool said = all->note == more.note;
  if (more.note.empty() || said || (more.note == kNothingToKeep && !all->boundaries.empty())) {
    return;
  }
  absl::StrAppend(&all->note, all->note.empty() ? "" : "; ", more.note);
}

}  // namespace

Sequence::Sequence(SequenceId sequence_id, EngineRequest engine_request,
                   EngineCallbacks engine_callbacks)
    : id(sequence_id),
      request(std::move(engine_request)),
      callbacks(std::move(engine_callbacks)),
      prefix(PrefixOf(request, {request.token_ids.begin(), request.token_ids.end()})),
      submitted_at(absl::Now()),
      state(std::make_shared<RequestState>()),
      answer(request.speculate.value_or(0)) {
  assert(!request.token_ids.empty());
  state->unfinished = request.samples;
  state->ends.resize(request.samples);
  if (writes()) kept.written = std::make_shared<WrittenTokens>(request.token_ids.size());
  if (writes() && callbacks.on_published != nullptr) {
    kept.published = std::make_shared<PublishedNotice>(callbacks.on_published);
  }
}

Sequence::Sequence(SequenceId sequence_id, std::shared_ptr<const Sequence> first_sample,
                   uint32_t sample_number)
    : id(sequence_id),
      request(SampleOf(first_sample->request, sample_number)),
      callbacks(first_sample->callbacks),
      prefix(),
      submitted_at(first_sample->submitted_at),
      state(first_sample->state),
      first(std::move(first_sample)),
      sample(sample_number),
      answer(request.speculate.value_or(0)) {
  assert(sample >= 1 && sample < first->request.sequences() && first->first == nullptr);
}

Sequence::Sequence(Sequence* preempted)
    : id(preempted->id),
      request(preempted->request),
      callbacks(preempted->callbacks),
      prefix(PrefixOf(preempted->asked(), preempted->Text())),
      submitted_at(preempted->submitted_at),
      state(preempted->state),
      first(preempted->first),
      sample(preempted->sample),
      resumed(true),
      computed_tokens(preempted->computed_tokens),
      reported_tokens(preempted->reported_tokens),
      answer(std::move(preempted->answer)),
      first_times(preempted->times.prefilled_at == absl::Time() ? preempted->first_times
                                                                : preempted->times) {
  assert(answer.tokens.size() == answer.generated);
  kept.prompt = preempted->kept.prompt;
  kept.published = preempted->kept.published;
  kept.written = preempted->kept.written;
  recomputed_end =
      answer.generated > 0 ? tokens() : std::max(preempted->recomputed_end, preempted->position);
}

std::vector<uint32_t> Sequence::Text() const {
  const std::vector<int32_t>& prompt = asked().token_ids;
  std::vector<uint32_t> text(prompt.begin(), prompt.end());
  text.insert(text.end(), answer.tokens.begin(), answer.tokens.end());
  return text;
}

void Sequence::DropHeld() {
  fork_kvs.clear();
  kept.staged.reset();
  kept.lease.reset();
  restored.objects.clear();
  pooled.objects.clear();
  StopWaiting();
}

void Sequence::Speculate() {
  Speculation& speculation = answer.speculation;
  if (!speculation.is_on()) return;
  const std::vector<int32_t>& prompt = asked().token_ids;
  if (speculation.tokens() == 0) speculation.Append(prompt);
  assert(speculation.tokens() >= prompt.size());
  assert(answer.generated < request.max_new_tokens);  // a complete answer guesses nothing
  const size_t known = speculation.tokens() - prompt.size();
  speculation.Append(absl::MakeConstSpan(answer.tokens).subspan(known));
  // Do not guess the last token of a complete answer: no step would verify it.
  const uint32_t room = request.max_new_tokens - answer.generated - 1;
  if (answer.grammar == nullptr) return speculation.Guess(room);
  const std::vector<int32_t> forced = answer.grammar->Forced(std::min(room, speculation.most()));
  if (!forced.empty()) return speculation.Expect(forced);
  speculation.Guess(room);
  if (speculation.drafted() == 0) return;
  // After an error, the next mask reports the error.
  speculation.Cut(answer.grammar->CountAllowed(speculation.step().subspan(1)).value_or(0));
}

GrammarState* Sequence::GrammarOfNext() {
  if (request.grammar != nullptr && answer.grammar == nullptr) {
    answer.grammar = request.grammar->NewState();
  }
  return answer.grammar.get();
}

LogitRules* Sequence::RulesOfNext(const std::vector<int32_t>& eos) {
  const TokenRules& rules = request.sampling.rules;
  if (!rules.are_on()) return nullptr;
  if (!answer.rules.has_value()) {
    const EngineRequest& begun = asked();
    const auto ends = absl::MakeConstSpan(eos).subspan(0, request.ignore_eos ? 0 : eos.size());
    answer.rules.emplace(rules, ends, begun.token_ids, begun.first_draw);
  }
  answer.rules->Follow(answer.tokens);
  return &*answer.rules;
}

bool Sequence::IsGreedy() const {
  const SamplingParams& sampling = request.sampling;
  return sampling.temperature == 0 && !sampling.reports() && !sampling.rules.are_on() &&
         request.grammar == nullptr && !request.hash_logits && state->beams == nullptr;
}

absl::Span<const int32_t> Sequence::NextTokens(uint32_t tokens) const {
  if (tokens == 1) return {&answer.last_token, 1};
  const absl::Span<const int32_t> step = answer.speculation.step();
  assert(tokens <= step.size() && step[0] == answer.last_token);
  return step.subspan(0, tokens);
}

bool Sequence::StopWaiting() {
  if (!fetch.GiveUp()) return false;
  if (prefix.stop != nullptr) prefix.stop->Stop();
  return true;
}

bool FetchWait::WaitUntil(absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  if (state_ == State::kNone) state_ = State::kWaiting;
  deadline_ = std::max(deadline_, deadline);
  return state_ == State::kWaiting;
}

bool FetchWait::IsAwaited() const {
  absl::MutexLock lock(&mu_);
  return state_ == State::kWaiting;
}

bool FetchWait::HasArrived() const {
  absl::MutexLock lock(&mu_);
  return state_ == State::kArrived;
}

bool FetchWait::Deliver(FetchOutcome fetched) {
  absl::MutexLock lock(&mu_);
  if (state_ != State::kWaiting) return false;  // the engine gave up and computes the prefix
  fetched_ = std::move(fetched);
  state_ = State::kArrived;
  return true;
}

std::optional<FetchOutcome> FetchWait::Take(absl::Time now) {
  absl::MutexLock lock(&mu_);
  if (state_ == State::kArrived) {
    state_ = State::kNone;
    return std::exchange(fetched_, FetchOutcome());
  }
  if (state_ != State::kWaiting || now < deadline_) return std::nullopt;
  state_ = State::kGivenUp;
  return FetchOutcome();
}

absl::Time FetchWait::deadline() const {
  absl::MutexLock lock(&mu_);
  return state_ == State::kWaiting ? deadline_ : absl::InfiniteFuture();
}

bool FetchWait::GiveUp() {
  FetchOutcome unused;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  std::swap(fetched_, unused);
  if (state_ != State::kWaiting && state_ != State::kGivenUp) return false;
  state_ = State::kGivenUp;
  return true;
}

void WrittenTokens::Add(const std::vector<ObjectId>& lacked) {
  absl::MutexLock lock(&mu_);
  for (const ObjectId& id : lacked) {
    for (size_t at = id.begin; at < std::min<size_t>(id.begin + id.tokens, written_.size()); ++at) {
      count_ += written_[at] ? 0 : 1;
      written_[at] = true;
    }
  }
}

uint32_t WrittenTokens::count() const {
  absl::MutexLock lock(&mu_);
  assert(count_ <= written_.size());
  return count_;
}

void PublishedNotice::Expect(int outcomes) {
  absl::MutexLock lock(&mu_);
  assert(awaited_ == 2 && outcomes >= 1);  // no outcome was reported yet
  awaited_ = 1 + outcomes;
}

void PublishedNotice::OnFinished() {
  PublishOutcome all;
  {
    absl::MutexLock lock(&mu_);
    assert(awaited_ >= 1);
    if (--awaited_ > 0) return;
    all = outcome_;
  }
  callback_(all);
}

void PublishedNotice::OnOutcome(const PublishOutcome& outcome) {
  PublishOutcome all;
  {
    absl::MutexLock lock(&mu_);
    assert(awaited_ >= 1);
    AddOutcome(outcome, &outcome_);
    if (--awaited_ > 0) return;
    all = outcome_;
  }
  callback_(all);
}

}  // namespace hearth
