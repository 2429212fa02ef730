#include "worker/engine/runner/invariant_runner.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// Every SequenceKv of this runner is an InvariantKv: NewKv made it.
InvariantKv* BlocksOf(SequenceKv* kv) { return static_cast<InvariantKv*>(kv); }

// The blocks of whole chunks that a sequence takes at most, of each layer group.
struct NeededBlocks {
  uint64_t global = 0, local = 0;
  uint64_t open = 0;       // beside them, of the groups whose whole chunks are sealed
  bool offloaded = false;  // `global` ones are of the second arena, and `open` ones global
  uint64_t BytesOf(const KvLayout& layout) const {
    const uint64_t chunk = layout.chunk_tokens;
    const uint64_t open_layers =
        offloaded ? layout.LayerCount(LayerGroup::kGlobal) : layout.layers.size();
    return (offloaded ? 0 : global * layout.ObjectBytes(chunk, LayerGroup::kGlobal)) +
           local * layout.ObjectBytes(chunk, LayerGroup::kLocal) +
           open * open_layers * layout.PlainSliceBytes(chunk);
  }
  uint64_t OffloadedBytesOf(const KvLayout& layout) const {
    return offloaded ? global * layout.ObjectBytes(layout.chunk_tokens, LayerGroup::kGlobal) : 0;
  }
};

uint64_t SplitsOf(const KvLayout& layout, uint64_t tokens) {
  return (tokens + layout.chunk_tokens - 1) / layout.chunk_tokens;
}

constexpr uint64_t kAnySteps = uint64_t{1} << 32;

// Of `tokens` in steps of `step`, the first of them at `first_local` in local layers. Their blocks
// live as long as the window and a step, no more than `seen` at a time, if nobody else has them.
NeededBlocks BlocksFor(const InvariantKv& kv, uint64_t tokens, uint64_t step, uint64_t first_local,
                       NeededBlocks shared) {
  const KvLayout& layout = kv.layout();
  const uint64_t chunk = layout.chunk_tokens;
  const uint64_t splits = SplitsOf(layout, tokens);
  const uint64_t seen = (layout.window + step + 2 * (chunk - 1)) / chunk;
  const uint64_t first = std::min(splits, first_local / chunk + shared.local);
  const bool offloaded = Offloads(kv.choice().strategy);
  const bool seals = offloaded || layout.quantization.is_on();
  const uint64_t written = seals ? (step + 2 * (chunk - 1)) / chunk : 0;
  return {splits - std::min(splits, shared.global), std::min(seen, splits - first),
          std::min(splits, written), offloaded};
}

ModelRunner::KvBytes BytesOf(const KvBlocks& blocks) {
  return {blocks.budget_bytes(), blocks.used_bytes(), blocks.reserved_bytes(),
          blocks.taken_blocks()};
}

// kInvalidArgument: `what` would never have room in this arena.
absl::Status CheckFits(absl::string_view what, uint64_t bytes, const KvBlocks& arena,
                       absl::string_view instead) {
  if (bytes <= arena.budget_bytes()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(arena.name(), ": ", what, " may need ", bytes, " bytes of ",
                   arena.budget_bytes(), " in all: ", instead, ", or raise --", arena.name()));
}

// Takes what was set aside, where the strategy says so.
absl::Status TakeAhead(const NeededBlocks& needed, uint64_t tokens, InvariantKv* kv) {
  if (!TakesAhead(kv->choice().strategy)) return absl::OkStatus();
  const uint64_t global = needed.offloaded ? needed.open : needed.global;
  return kv->TakeAhead(global, needed.local, needed.offloaded ? needed.global : 0,
                       SplitsOf(kv->layout(), tokens));
}

absl::Status ReserveOffloaded(const NeededBlocks& needed, InvariantKv* kv) {
  const uint64_t bytes = needed.OffloadedBytesOf(kv->layout());
  return bytes == 0 ? absl::OkStatus() : kv->ReserveOffloaded(bytes);
}

absl::Status RestoreObject(const KvLayout& layout, const KvObject& object, InvariantKv* kv) {
  const bool whole = object.id.tokens == layout.chunk_tokens;
  if (whole && object.bytes != nullptr) return kv->Adopt(object.id, object.bytes);
  std::vector<const std::byte*> slices;
  const size_t layers = layout.LayerCount(object.id.group);
  for (size_t i = 0; i < layers; ++i) {
    slices.push_back(SliceOf(object, i, layout.SliceBytes(object.id.tokens)));
  }
  return kv->CopyIn(object.id, slices);
}

}  // namespace

InvariantRunner::InvariantRunner(std::unique_ptr<InvariantGemma> gemma, KvChoice kv,
                                 std::vector<std::string> notes)
    : gemma_(std::move(gemma)), kv_(std::move(kv)), notes_(gemma_->notes()) {
  notes_.insert(notes_.end(), notes.begin(), notes.end());
}

uint32_t InvariantRunner::step_tokens(const KvLayout& layout) const {
  return AloneStepTokens(layout.chunk_tokens);
}

ModelRunner::KvBytes InvariantRunner::kv_bytes() const { return BytesOf(gemma_->kv_blocks()); }
ModelRunner::KvBytes InvariantRunner::offloaded_kv_bytes() const {
  return BytesOf(gemma_->offloaded_blocks());
}

bool InvariantRunner::FreesKvBytes(const KvObject& object, const KvLack& lack) const {
  if (object.bytes == nullptr) return false;
  const auto frees = [&](const KvBlocks& arena, uint64_t lacking) {
    return (lacking > 0 || lack.all() == 0) && arena.Counts(object.bytes, object.size_bytes);
  };
  return frees(gemma_->kv_blocks(), lack.bytes) ||
         frees(gemma_->offloaded_blocks(), lack.offloaded_bytes);
}

// No machine and no number of threads is in it: the bits depend on neither.
absl::StatusOr<ComputeIdentity> InvariantRunner::Identify(const KvLayout& layout) {
  ComputeIdentity identity;
  identity.device_kind = device_kind_;
  identity.compute_version = absl::StrCat("hearth kernels ", InvariantGemma::kKernelsVersion,
                                          ", splits of ", layout.chunk_tokens);
  const WeightForm form = gemma_->weights();
  if (form == WeightForm::kQ8_0 || form == WeightForm::kQ4_0) {
    identity.weights = absl::StrCat(WeightFormName(form), " by quantizer ", kQuantizerVersion);
  }
  if (gemma_->arithmetic() == Arithmetic::kInt8) identity.arithmetic = arithmetic();
  return identity;
}

absl::StatusOr<std::unique_ptr<SequenceKv>> InvariantRunner::NewKv(int tokens,
                                                                   const KvObjects& shared,
                                                                   const KvChoice& choice) {
  auto kv = std::make_unique<InvariantKv>(gemma_->NewKv(choice));
  const KvLayout& layout = kv->layout();
  const auto most = static_cast<uint64_t>(tokens);
  const uint64_t step = step_tokens(layout);
  const NeededBlocks most_blocks = BlocksFor(*kv, most, step, 0, {});
  const std::string what = absl::StrCat(tokens, " tokens");
  constexpr char kInstead[] = "ask for fewer tokens (max_new_tokens counts)";
  absl::Status fits = CheckFits(what, most_blocks.BytesOf(layout), gemma_->kv_blocks(), kInstead);
  if (fits.ok()) {
    fits =
        CheckFits(what, most_blocks.OffloadedBytesOf(layout), gemma_->offloaded_blocks(), kInstead);
  }
  if (!fits.ok()) return fits;
  NeededBlocks held;
  uint64_t end = 0, first_local = most;
  for (const auto& object : shared) {
    const ObjectId& id = object->id;
    const bool local = id.group == LayerGroup::kLocal;
    end = std::max<uint64_t>(end, id.begin + id.tokens);
    if (local) first_local = std::min<uint64_t>(first_local, id.begin);
    if (id.tokens != layout.chunk_tokens || object->bytes == nullptr) continue;
    const bool second = most_blocks.offloaded && !local;
    const KvBlocks& arena = second ? gemma_->offloaded_blocks() : gemma_->kv_blocks();
    KvBlock block = arena.Counted(object->bytes, object->size_bytes);
    if (block == nullptr) continue;
    kv->Hold(std::move(block));
    ++(local ? held.local : held.global);
  }
  first_local = std::min(first_local, end);
  const NeededBlocks needed = BlocksFor(*kv, most, step, first_local, held);
  absl::Status room = kv->Reserve(
      needed.BytesOf(layout), BlocksFor(*kv, most, kAnySteps, first_local, held).BytesOf(layout));
  if (room.ok()) room = ReserveOffloaded(needed, kv.get());
  if (room.ok()) room = TakeAhead(needed, most, kv.get());
  if (!room.ok()) return room;
  return kv;
}

// A fork takes what comes behind the whole chunks of the prompt; what it holds of the prompt's
// local layers the first sequence has left meanwhile, once for all forks.
absl::StatusOr<std::vector<std::unique_ptr<SequenceKv>>> InvariantRunner::NewForks(
    SequenceKv* kv, int prompt, int tokens, uint32_t forks, ForkUse use) {
  const KvLayout& layout = BlocksOf(kv)->layout();
  const uint64_t chunk = layout.chunk_tokens, step = step_tokens(layout);
  const uint64_t whole = static_cast<uint64_t>(prompt) / chunk * chunk;
  const auto most = static_cast<uint64_t>(tokens);
  const NeededBlocks needed =
      BlocksFor(*BlocksOf(kv), most, step, whole, {whole / chunk, 0, 0, false});
  const uint64_t bytes = needed.BytesOf(layout);
  const uint64_t left = ((layout.window + chunk - 1) / chunk + 1) *
                        layout.ObjectBytes(layout.chunk_tokens, LayerGroup::kLocal);
  const NeededBlocks of_first = BlocksFor(*BlocksOf(kv), most, step, 0, {});
  const uint64_t first_at_most = BlocksFor(*BlocksOf(kv), most, kAnySteps, 0, {}).BytesOf(layout);
  const uint64_t all = std::min(of_first.BytesOf(layout) + left, first_at_most) + forks * bytes;
  const uint64_t offloaded =
      of_first.OffloadedBytesOf(layout) + forks * needed.OffloadedBytesOf(layout);
  const std::string what = absl::StrCat(
      forks + 1, use == ForkUse::kBeams ? " beams of " : " samples of ", tokens, " tokens");
  constexpr char kInstead[] = "ask for fewer of either";
  absl::Status fits = CheckFits(what, all, gemma_->kv_blocks(), kInstead);
  if (fits.ok()) fits = CheckFits(what, offloaded, gemma_->offloaded_blocks(), kInstead);
  if (!fits.ok()) return fits;
  std::vector<std::unique_ptr<SequenceKv>> made;
  uint64_t untried = forks;
  absl::Status room = BlocksOf(kv)->ReserveMore(left);
  while (room.ok() && made.size() < forks) {
    auto fork = std::make_unique<InvariantKv>(gemma_->NewKv(BlocksOf(kv)->choice()));
    fork->UseAdapter(BlocksOf(kv)->adapter());
    room = fork->Reserve(bytes, bytes, use == ForkUse::kBeams ? BlocksOf(kv) : nullptr);
    if (room.ok()) room = ReserveOffloaded(needed, fork.get());
    if (room.ok()) room = TakeAhead(needed, most, fork.get());
    --untried;
    made.push_back(std::move(fork));
  }
  if (room.ok()) return made;
  gemma_->kv_blocks().AddLacking(untried * bytes);
  gemma_->offloaded_blocks().AddLacking(untried * needed.OffloadedBytesOf(layout));
  return room;
}

absl::Status InvariantRunner::LoadAdapter(const std::string& name, const std::string& dir) {
  auto adapter = gemma_->LoadAdapter(dir);
  if (!adapter.ok()) return adapter.status();
  adapters_.push_back({name, (*adapter)->digest(), (*adapter)->rank(), (*adapter)->bytes()});
  notes_.push_back(absl::StrCat("adapter ", name, ": rank ", (*adapter)->rank(), ", ",
                                (*adapter)->bytes(), " bytes"));
  adapter_weights_.push_back(*std::move(adapter));
  return absl::OkStatus();
}

void InvariantRunner::UseAdapter(const std::string& name, SequenceKv* kv) {
  if (name.empty()) return;
  const std::optional<size_t> number = AdapterNumber(adapters_, name);
  assert(number.has_value());
  BlocksOf(kv)->UseAdapter(adapter_weights_[*number]);
}

void InvariantRunner::Fork(const SequenceKv& kv, SequenceKv* fork) {
  BlocksOf(fork)->ShareAll(static_cast<const InvariantKv&>(kv));
}

absl::Status InvariantRunner::ReserveMore(SequenceKv* kv, uint64_t bytes) {
  return BlocksOf(kv)->ReserveMore(bytes);
}

absl::Status InvariantRunner::Restore(const KvLayout& layout, uint32_t boundary,
                                      const KvObjects& objects, SequenceKv* kv) {
  InvariantKv* blocks = BlocksOf(kv);
  blocks->BeginRestore(static_cast<int>(boundary));
  for (const auto& object : objects) {
    const absl::Status restored = RestoreObject(layout, *object, blocks);
    if (restored.ok()) continue;
    blocks->BeginRestore(0);  // nothing: what others hold is not to be written
    return restored;
  }
  blocks->FinishRestore();
  return absl::OkStatus();
}

absl::Status InvariantRunner::Step(absl::Span<const StepPart> parts) {
  std::vector<InvariantGemma::Part> of_model;
  for (const StepPart& part : parts) {
    const int want = part.logits == nullptr ? 0 : static_cast<int>(part.wanted);
    of_model.push_back({BlocksOf(part.kv), part.tokens, want, part.logits});
  }
  return gemma_->Step(of_model);
}

void InvariantRunner::Forget(SequenceKv* kv, int length) {
  assert(length <= kv->length());
  BlocksOf(kv)->Rewind(length);
  BlocksOf(kv)->GiveBackRoom();
}

}  // namespace hearth
