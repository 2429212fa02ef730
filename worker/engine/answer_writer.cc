#include "worker/engine/answer_writer.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"

namespace hearth {
namespace {

// Maximum number of draws of one token with a grammar. A token is drawn again if it completes a
// trigger and breaks the schema; then the token is not allowed again. Few tokens of a vocabulary
// complete the same trigger.
constexpr int kMaxDrawsPerToken = 32;

double Milliseconds(absl::Time begin, absl::Time end) {
  return absl::ToDoubleMilliseconds(end - begin);
}

}  // namespace

absl::Status Caught(absl::FunctionRef<absl::Status()> work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the worker has too little memory for this request");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

absl::StatusOr<std::optional<FinishReason>> AnswerWriter::EmitFrom(const LogitRow& row,
                                                                   std::optional<int32_t> guess,
                                                                   const SequencePtr& sequence) {
  assert(sequence->answer.generated < sequence->request.max_new_tokens);
  GrammarState* const grammar = sequence->GrammarOfNext();
  absl::StatusOr<SampledToken> token = Draw(row, grammar, sequence.get());
  if (!token.ok()) {
    // The logits are not finite. The restored prefix may be damaged, so remove it from the pool.
    const uint32_t boundary = sequence->restored.boundary;
    if (boundary > 0 && absl::IsInternal(token.status())) {
      keeper_->pool().Forget(sequence->prefix, boundary);
    }
    return token.status();
  }
  token->sample = sequence->sample;
  if (sequence->answer.generated == 0) sequence->times.first_token_at = absl::Now();
  if (IsEnd(*sequence, token->id)) return FinishReason::kEos;
  if (IsStop(*sequence, token->id)) return FinishReason::kStop;
  Append(token->id, sequence.get());
  std::optional<FinishReason> reason;
  if (grammar != nullptr && grammar->MustEnd()) {
    reason = FinishReason::kEos;  // only an end token is allowed now: no step is needed to draw it
  } else if (sequence->answer.generated == sequence->request.max_new_tokens) {
    reason = FinishReason::kLength;
  }
  if (holds_ && !reason.has_value() && guess != token->id) {
    held_.push_back({sequence, *std::move(token)});
    return reason;
  }
  SendHeld();
  return Send(*sequence, *token) ? reason : FinishReason::kStop;
}

void AnswerWriter::SendHeld() {
  while (!held_.empty()) {
    const HeldToken held = std::move(held_.front());
    held_.pop_front();
    if (held.sequence->state->failed) continue;
    const absl::Status sent = Caught([&] {
      if (Send(*held.sequence, held.token)) return absl::OkStatus();
      leave_step_(held.sequence.get());
      FinishNow(held.sequence, FinishReason::kStop);
      return absl::OkStatus();
    });
    if (sent.ok()) continue;
    leave_step_(held.sequence.get());
    FailNow(held.sequence, sent);
  }
}

bool AnswerWriter::IsEnd(const Sequence& sequence, int32_t token) const {
  const std::vector<int32_t>& eos = model_->config().eos_token_ids;
  return !sequence.request.ignore_eos && std::binary_search(eos.begin(), eos.end(), token);
}

bool AnswerWriter::IsStop(const Sequence& sequence, int32_t token) const {
  const std::vector<int32_t>& stops = sequence.request.sampling.rules.stop_ids;
  return std::find(stops.begin(), stops.end(), token) != stops.end();
}

// Draws the next token; `grammar` may be null. If the grammar's mask allows the drawn token but
// Accept refuses it, draws again from the same logits with the new mask.
absl::StatusOr<SampledToken> AnswerWriter::Draw(const LogitRow& row, GrammarState* grammar,
                                                Sequence* sequence) {
  if (row.greedy.has_value()) return SampleGreedy(*row.greedy);
  const absl::Span<float> logits = row.values;
  const EngineRequest& request = sequence->request;
  const uint64_t draw = request.first_draw + sequence->answer.generated;
  LogitRules* const rules = sequence->RulesOfNext(model_->config().eos_token_ids);
  Sampler& sampler = sequence->answer.sampler;
  if (grammar == nullptr) return sampler.Sample(logits, request.sampling, draw, rules);
  absl::Status met;
  for (int draws = 0; met.ok(); ++draws) {
    if (draws == kMaxDrawsPerToken) {
      met = absl::InvalidArgumentError(
          absl::StrCat("grammar: the text after a trigger must obey the schema; the model drew ",
                       draws, " other tokens in one place of the answer"));
      break;
    }
    const int64_t begin = absl::GetCurrentTimeNanos();
    const auto allowed = grammar->Allow();
    const int64_t took = std::max<int64_t>(absl::GetCurrentTimeNanos() - begin, 0);
    counters_->Add(EngineCounter::kGrammarMasks);
    counters_->Add(EngineCounter::kGrammarMaskUs, static_cast<uint64_t>(took) / 1000);
    met = allowed.status();
    if (!met.ok()) break;
    absl::StatusOr<SampledToken> token =
        sampler.Sample(logits, request.sampling, draw, rules, *allowed);
    if (!token.ok() || IsEnd(*sequence, token->id) || IsStop(*sequence, token->id)) return token;
    const absl::StatusOr<bool> accepted = grammar->Accept(token->id);
    if (accepted.ok() && *accepted) return token;
    met = accepted.status();
  }
  counters_->Add(EngineCounter::kGrammarLimits);
  return met;
}

void AnswerWriter::Append(int32_t token, Sequence* sequence) {
  ++sequence->answer.generated;
  sequence->answer.last_token = token;
  sequence->answer.tokens.push_back(token);
  counters_->Add(EngineCounter::kGeneratedTokens);
}

// Sends one token to the caller. Returns false if the caller stops the answer.
bool AnswerWriter::Send(const Sequence& sequence, const SampledToken& token) {
  const auto& on_token = sequence.callbacks.on_token;
  return on_token == nullptr || on_token(token);
}

FinishReason AnswerWriter::EmitAll(Sequence* sequence, const std::vector<int32_t>& tokens,
                                   FinishReason reason) {
  SendHeld();
  sequence->times.first_token_at = absl::Now();
  sequence->answer.generated = 0;
  for (const int32_t id : tokens) {
    SampledToken token;
    token.id = id;
    Append(id, sequence);
    if (!Send(*sequence, token)) return FinishReason::kStop;
  }
  return reason;
}

void AnswerWriter::Dismiss(Sequence* beam) {
  CountHeld(*beam);
  ReleasePlace(beam);
  planner_->NoteDone();
}

// Samples the token of each row as if every row were a separate decode step. The logits of the next
// row are valid only if this row's token equals the token that was guessed for it.
absl::StatusOr<std::optional<FinishReason>> AnswerWriter::EmitStep(const SequencePtr& sequence,
                                                                   uint32_t rows) {
  GrowingAnswer& answer = sequence->answer;
  assert(rows >= 1);
  const int begin = sequence->kv->length() - static_cast<int>(rows);
  // `step` stays valid while tokens are appended to the answer.
  const absl::Span<const int32_t> step = sequence->NextTokens(rows);
  absl::StatusOr<std::optional<FinishReason>> finished = std::optional<FinishReason>();
  uint32_t used = 0;
  bool goes_on = true;
  while (goes_on) {
    const LogitRow row = answer.logits.Row(used, rows);
    const bool is_last = used + 1 == rows;
    finished = EmitFrom(row, is_last ? std::nullopt : std::optional(step[used + 1]), sequence);
    if (!finished.ok()) return finished.status();
    HashRow(row.values, sequence.get());
    ++used;
    goes_on = !finished->has_value() && !sequence->state->cancelled && used < rows &&
              answer.last_token == step[used];
  }
  assert(used >= 1 && used <= rows);
  if (used < rows) model_->Forget(sequence->kv.get(), begin + static_cast<int>(used));
  NoteStep(sequence.get(), rows - 1, used - 1);
  return finished;
}

void AnswerWriter::NoteStep(Sequence* sequence, uint32_t drafted, uint32_t accepted) {
  if (sequence->answer.speculation.is_forced()) {
    counters_->Add(EngineCounter::kForcedTokens, drafted);
  }
  sequence->answer.speculation.OnStep(drafted, accepted);
  RequestState& state = *sequence->state;
  ++state.decode_steps;
  state.drafted_tokens += drafted;
  state.accepted_tokens += accepted;
  counters_->Add(EngineCounter::kDecodeSteps);
  counters_->Add(EngineCounter::kDraftedTokens, drafted);
  counters_->Add(EngineCounter::kAcceptedTokens, accepted);
}

void AnswerWriter::HashRow(absl::Span<const float> logits, Sequence* sequence) {
  const absl::string_view bytes(reinterpret_cast<const char*>(logits.data()),
                                logits.size() * sizeof(float));
  std::optional<Digest>& first = sequence->state->first_logits;
  assert(!logits.empty() || (first.has_value() && !sequence->request.hash_logits));
  if (!first.has_value()) first = Sha256(bytes);
  std::unique_ptr<Sha256Stream>& all = sequence->answer.logits_digest;
  if (!sequence->request.hash_logits) return;
  if (all == nullptr) all = std::make_unique<Sha256Stream>();
  all->Add(bytes);
}

// Frees the sequence's slot and memory. The caller must then run the request's callbacks, and call
// NoteDone() after them.
void AnswerWriter::ReleasePlace(Sequence* sequence) {
  if (sequence->kv != nullptr) model_->Release(std::move(sequence->kv));
  for (auto& kv : sequence->fork_kvs) {
    if (kv != nullptr) model_->Release(std::move(kv));
  }
  sequence->DropHeld();
  planner_->Remove(sequence->id);
}

// Adds the KV bytes of a sequence that ends to the request's totals. In class invariant, samples of
// a request share the whole chunks of its prompt: shared bytes are counted once, as the maximum
// over the samples.
void AnswerWriter::CountHeld(const Sequence& sequence) const {
  if (sequence.kv == nullptr) return;
  const auto prompt = static_cast<uint32_t>(sequence.asked().token_ids.size());
  const bool in_blocks = layout_.exactness == Exactness::kInvariant;
  const auto shared = static_cast<int>(in_blocks ? prompt - prompt % layout_.chunk_tokens : 0);
  const uint64_t own = sequence.kv->held_bytes(shared);
  RequestState& state = *sequence.state;
  assert(own <= sequence.kv->held_bytes(0));
  state.own_kv_bytes += own;
  state.shared_kv_bytes = std::max(state.shared_kv_bytes, sequence.kv->held_bytes(0) - own);
}

void AnswerWriter::Finish(const SequencePtr& sequence, FinishReason reason) {
  SendHeld();
  FinishNow(sequence, reason);
}

void AnswerWriter::FinishNow(const SequencePtr& sequence, FinishReason reason) {
  keeper_->KeepAnswer(sequence.get(), planner_->cache());
  RequestState& state = *sequence->state;
  CountHeld(*sequence);
  SampleEnd& end = state.ends[sequence->sample];
  assert(sequence->answer.generated <= sequence->request.max_new_tokens);
  end.reason = reason;
  end.generated_tokens = sequence->answer.generated;
  const auto& logits = sequence->answer.logits_digest;
  if (logits != nullptr) end.logits_sha256 = logits->SoFar();
  ReleasePlace(sequence.get());
  assert(state.unfinished >= 1);
  if (--state.unfinished > 0) return planner_->NoteDone();
  counters_->Add(EngineCounter::kRequestsFinished);
  const Sequence& first = sequence->first == nullptr ? *sequence : *sequence->first;
  if (first.callbacks.on_finished != nullptr) first.callbacks.on_finished(InfoOf(*sequence));
  if (first.kept.published != nullptr) first.kept.published->OnFinished();
  planner_->NoteDone();
}

// REQUIRES: all samples of the request have ended; `sequence` is one of them.
FinishedInfo AnswerWriter::InfoOf(const Sequence& sequence) const {
  const RequestState& state = *sequence.state;
  const Sequence& first = sequence.first == nullptr ? sequence : *sequence.first;
  const absl::Time now = absl::Now();
  const absl::Time token =
      first.generates() ? first.times.first_token_at : first.times.prefilled_at;
  FinishedInfo info;
  assert(state.unfinished == 0 && !state.ends.empty());
  info.reason = state.ends[0].reason;
  for (const SampleEnd& end : state.ends) info.generated_tokens += end.generated_tokens;
  info.samples = state.ends;
  info.first_logits_sha256 = state.first_logits.value_or(Digest{});
  info.computed_tokens = first.computed_tokens;
  info.decode_steps = state.decode_steps;
  info.drafted_tokens = state.drafted_tokens;
  info.accepted_tokens = state.accepted_tokens;
  info.kv_bytes = state.own_kv_bytes + state.shared_kv_bytes;
  info.kv = first.kv_choice();
  info.exactness = layout_.exactness;
  info.queue_ms = Milliseconds(first.submitted_at, first.times.admitted_at);
  info.fetch_ms = Milliseconds(first.times.admitted_at, first.times.restored_at);
  info.prefill_ms = Milliseconds(first.times.restored_at, first.times.prefilled_at);
  info.ttft_ms = Milliseconds(first.submitted_at, token);
  info.total_ms = Milliseconds(first.submitted_at, now);
  return info;
}

void AnswerWriter::Fail(const SequencePtr& sequence, const absl::Status& status) {
  SendHeld();
  FailNow(sequence, status);
}

void AnswerWriter::FailNow(const SequencePtr& sequence, const absl::Status& status) {
  ReleasePlace(sequence.get());
  if (std::exchange(sequence->state->failed, true))
    return planner_->NoteDone();  // another sample already reported the error
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:  // error of the grammar, counted as kGrammarLimits
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnavailable:
      counters_->Add(EngineCounter::kRequestsCancelled);
      break;
    case absl::StatusCode::kDeadlineExceeded:
      counters_->Add(EngineCounter::kRequestsExpired);
      break;
    default:
      counters_->Add(EngineCounter::kRequestsFailed);
  }
  if (sequence->callbacks.on_error != nullptr) sequence->callbacks.on_error(status);
  planner_->NoteDone();
}

}  // namespace hearth
