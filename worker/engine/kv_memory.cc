#include "worker/engine/kv_memory.h"

#include <algorithm>
#include <cassert>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

constexpr char kRefusalCure[] = "; lower --kv-bytes, or stop other programs that use the memory";

}  // namespace

// Returns the KV bytes of a sequence up to token `end`, plus those of its samples or beams that
// will be forked. If the model batches, these share the whole chunks of the prompt.
uint64_t KvMemory::NeededBytes(const Sequence& sequence, uint32_t end) const {
  const uint32_t text = sequence.tokens();
  const uint32_t shared = model_->batches() ? text - text % layout_.chunk_tokens : 0;
  const auto bytes = [&](uint32_t tokens) {
    return model_->MissingKvBytes(nullptr, static_cast<int>(tokens), sequence.kv_choice());
  };
  return bytes(end) + (sequence.unforked() > 0 ? sequence.unforked() * bytes(end - shared) : 0);
}

void KvMemory::LookUpPool(Sequence* sequence) {
  if (!sequence->reads()) return;
  const uint32_t matched = sequence->pooled.matched_tokens;
  sequence->pooled = keeper_->pool().Lookup(sequence->prefix, sequence->max_boundary());
  sequence->pooled.matched_tokens = std::max(sequence->pooled.matched_tokens, matched);
}

// Makes a request offloaded that needs more than the whole budget up to token `end`, unless the
// budget is too small for the offloaded request, too.
void KvMemory::OffloadAboveBudget(const Sequence& sequence, uint32_t end) {
  const uint64_t budget = model_->kv_bytes().budget;
  const auto fits = [&] { return budget == 0 || NeededBytes(sequence, end) <= budget; };
  if (sequence.state->offloaded || !MayOffload(sequence) || fits()) return;
  sequence.state->offloaded = true;
  sequence.state->offloaded = fits();
  if (sequence.state->offloaded) NoteOffloaded(sequence, /*is_refused=*/false);
}

// Creates the KV of a sequence and of its further samples. Returns false if the machine is out of
// memory and the sequence can wait for others.
absl::StatusOr<bool> KvMemory::MakeKv(Sequence* sequence, bool can_wait) {
  const EngineRequest& request = sequence->request;
  const uint32_t left = request.max_new_tokens - sequence->answer.generated;
  const uint32_t forks = request.searches() ? 0 : sequence->unforked();
  for (uint32_t made = 0; made <= forks; ++made) {
    absl::StatusOr<std::unique_ptr<SequenceKv>> kv =
        model_->NewKv(static_cast<int>(sequence->tokens() + left), sequence->kv_choice());
    if (absl::IsResourceExhausted(kv.status()) && can_wait) {
      sequence->kv = nullptr;
      sequence->fork_kvs.clear();
      return false;
    }
    if (!kv.ok()) return kv.status();
    model_->UseAdapter(request.adapter, kv->get());
    if (made == 0) {
      sequence->kv = *std::move(kv);
    } else {
      sequence->fork_kvs.push_back(*std::move(kv));
    }
  }
  return true;
}

absl::StatusOr<bool> KvMemory::TryAdmit(Sequence* sequence) {
  const EngineRequest& request = sequence->request;
  const uint32_t left = request.max_new_tokens - sequence->answer.generated;
  // Reserve memory for the whole answer if the model cannot preempt the sequence, or if a
  // preemption would discard its answer (beam search, static KV).
  const bool whole =
      !model_->batches() || request.searches() || request.kv.strategy == KvStrategy::kStatic;
  const uint32_t end = sequence->tokens() + (whole ? left : std::min(left, layout_.chunk_tokens));
  const uint64_t budget = model_->kv_bytes().budget;
  OffloadAboveBudget(*sequence, end);
  const uint64_t needed = NeededBytes(*sequence, end);
  sequence->holds_whole_budget = budget > 0 && needed > budget;
  if (sequence->holds_whole_budget && !sequence->resumed) {
    const std::string many =
        absl::StrCat(sequence->unforked() + 1, request.searches() ? " beams of " : " samples of ");
    return absl::InvalidArgumentError(
        absl::StrCat("kv-bytes: ", sequence->unforked() > 0 ? many : "", end, " tokens may need ",
                     needed, " bytes; the limit is ", budget,
                     ": shorten the prompt, lower max_new_tokens, or raise --kv-bytes"));
  }
  LookUpPool(sequence);
  const std::vector<SequencePtr> others = planner_->WithKv();
  // bytes to reserve for all admitted sequences and this one
  uint64_t claimed = sequence->holds_whole_budget ? budget : needed;
  for (const SequencePtr& other : others) {
    claimed += model_->MissingKvBytes(other->kv.get(), static_cast<int>(other->claimed_end),
                                      other->kv_choice());
  }
  const bool offloads = sequence->kv_choice().strategy == KvStrategy::kOffloaded;
  for (const auto& object : sequence->pooled.objects) {
    // `needed` does not include the chunks that will be in host memory
    if (offloads && object->id.group == LayerGroup::kGlobal) continue;
    if (model_->CountsKvBytes(*object)) claimed -= std::min<uint64_t>(claimed, object->size_bytes);
  }
  // The last request tries the whole budget again.
  if (others.empty() || model_->kv_bytes().used > refused_at_bytes_) refused_at_bytes_ = UINT64_MAX;
  const uint64_t limit = std::min(budget, refused_at_bytes_);
  const auto lacking = [&]() -> uint64_t {
    const uint64_t all = model_->kv_bytes().used + claimed;
    return budget > 0 && all > limit ? all - limit : 0;
  };
  if (lacking() > 0 && audit_->is_under_way()) audit_->Skip();
  const auto frees = [this](const KvObject& object) { return model_->CountsKvBytes(object); };
  const auto evictable = [&] { return keeper_->pool().EvictableBytes(frees); };
  // Blocks that are being sealed cannot be evicted.
  if (lacking() > 0 && lacking() > evictable()) keeper_->publisher().AwaitSeals();
  // If others run, evict only if that frees enough; otherwise this sequence must wait anyway.
  if (lacking() > 0 && (others.empty() || lacking() <= evictable())) {
    while (lacking() > 0 && (keeper_->pool().EvictOne(frees) ||
                             (others.empty() && keeper_->publisher().DropOldest()))) {
    }
  }
  if (lacking() > 0) {
    // Another holder, such as a publish, uses the rest. If the pool holds these blocks too, their
    // release would free nothing and not wake the engine, so clear the pool.
    if (others.empty()) keeper_->pool().Clear();
    sequence->pooled = PooledPrefix();  // the pool may evict the prefix while the sequence waits
    return false;
  }
  const absl::StatusOr<bool> made = MakeKv(sequence, !others.empty());
  if (!made.ok() || !*made) return made;
  sequence->claimed_end = end;
  return true;
}

bool KvMemory::FreeUnused() {
  const auto frees = [&](const KvObject& object) { return model_->CountsKvBytes(object); };
  if (keeper_->publisher().AwaitSeals() || keeper_->pool().EvictOne(frees)) return true;
  if (!audit_->is_under_way()) return false;
  audit_->Skip();
  return true;
}

bool KvMemory::ReleasePooled(const Sequence& sequence) {
  bool any = false;
  for (const SequencePtr& other : planner_->WithKv()) {
    if (other->id <= sequence.id || other->pooled.objects.empty()) continue;
    other->pooled.objects.clear();
    any = true;
  }
  return any;
}

absl::Status KvMemory::RetryFreeingMemory(const Sequence& sequence,
                                          absl::FunctionRef<absl::Status()> use) {
  for (bool was_refused = false;;) {
    absl::Status status = use();
    if (!IsLack(status)) return status;
    if (FreeUnused()) continue;
    const bool is_refused = absl::IsUnavailable(status);
    if (is_refused && !std::exchange(was_refused, true)) NoteRefusal();
    if (is_refused && Offload(sequence, is_refused)) continue;
    if (keeper_->publisher().DropOldest() || ReleasePooled(sequence)) continue;
    const SequencePtr victim = planner_->Victim(sequence);
    if (victim == nullptr) {
      if (planner_->WithKv().size() == 1 && Offload(sequence, is_refused)) continue;
      return status;
    }
    assert(victim->id > sequence.id);  // a sequence is never preempted for a younger one
    Preempt(victim, is_refused);
  }
}

bool KvMemory::Offload(const Sequence& sequence, bool is_refused) {
  if (!MayOffload(sequence) || sequence.kv == nullptr || !model_->Offload(sequence.kv.get()))
    return false;
  sequence.state->offloaded = true;
  NoteOffloaded(sequence, is_refused);
  return true;
}

void KvMemory::NoteOffloaded(const Sequence& sequence, bool is_refused) {
  counters_->Add(EngineCounter::kKvOffloads);
  if (on_warning_ == nullptr) return;
  on_warning_(absl::StrCat(
      "the device has too little memory for a request of ", sequence.tokens(),
      " tokens: its keys and values are offloaded to host memory, and its steps are slower",
      is_refused ? kRefusalCure : "; raise --kv-bytes"));
}

absl::Status KvMemory::MakeRoom(SequencePart* part) {
  assert(part->tokens >= 1 && part->sequence->kv != nullptr);
  const SequencePtr sequence = part->sequence;
  const auto take = [&] {
    return model_->MakeRoom(sequence->kv.get(), static_cast<int>(part->tokens));
  };
  absl::Status room = take();
  // Guessed tokens may use free memory only. A prefill step of more than one chunk may also evict
  // from the pool, but takes no memory from a publish or from another sequence.
  const bool decodes = part->kind == StepKind::kDecode;
  while (!decodes && IsLack(room) && FreeUnused()) room = take();
  const uint32_t least = decodes ? 1 : layout_.chunk_tokens;
  if (IsLack(room) && part->tokens > least) {
    if (!decodes) planner_->ReturnTokens(sequence->id, part->tokens - least);
    part->tokens = least;
  }
  if (IsLack(room)) room = RetryFreeingMemory(*sequence, take);
  if (IsLack(room) && keeper_->ReleaseStaged(sequence.get())) {
    room = RetryFreeingMemory(*sequence, take);
  }
  if (!IsLack(room)) return room;
  const bool is_refused = absl::IsUnavailable(room);
  if (is_refused && planner_->WithKv().size() == 1)
    return absl::UnavailableError(absl::StrCat(room.message(), kRefusalCure));
  const bool no_token = sequence->Text().size() == sequence->tokens();  // no token since admission
  if (sequence->holds_whole_budget && no_token && planner_->WithKv().size() == 1) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "kv-bytes: a sequence of ", sequence->tokens(), " tokens needs more than the limit of ",
        model_->kv_bytes().budget, " bytes: raise --kv-bytes"));
  }
  Preempt(sequence, is_refused);
  return absl::OkStatus();
}

// Moves a sequence to the queue and frees its memory. A preempted beam search restarts: none of its
// tokens was sent to the caller, and it will find the same answer.
void KvMemory::Preempt(SequencePtr sequence, bool is_refused) {
  counters_->Add(EngineCounter::kPreemptions);
  if (is_refused && on_warning_ != nullptr) {
    const char* const who = model_->device_kind() == "cpu" ? "the machine" : "the device";
    on_warning_(absl::StrCat(who, " has too little memory: a request of ", sequence->tokens(),
                             " tokens waits for others", kRefusalCure));
  }
  if (sequence->state->beams != nullptr) {
    sequence = beams_->Abandon(sequence->state.get());
  } else {
    keeper_->KeepPreempted(sequence.get());
    model_->Release(std::move(sequence->kv));
  }
  sequence->DropHeld();
  const auto rest = std::make_shared<Sequence>(sequence.get());
  planner_->Requeue(rest, 1 + rest->unforked());
}

}  // namespace hearth
