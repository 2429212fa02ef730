#include "worker/engine/runner/invariant_runner.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// REQUIRES: `kv` was made by NewKv, so it is an InvariantKv.
InvariantKv* BlocksOf(SequenceKv* kv) { return static_cast<InvariantKv*>(kv); }

// Maximum KV blocks, and bytes, of a sequence of `tokens` tokens that runs in steps of at most a
// chunk. `offload_bytes`: limit of the blocks in host memory.
struct MostBlocks {
  MostBlocks(const KvLayout& layout, uint64_t tokens, KvStrategy strategy,
             uint64_t offload_bytes = 0) {
    const uint64_t chunk = layout.chunk_tokens;
    // Chunks that contain the rows of a step, and the earlier rows in the window of these rows.
    const uint64_t seen = (layout.window + 3 * chunk - 2) / chunk;
    const uint64_t chunks = (tokens + chunk - 1) / chunk;
    global = chunks;
    const uint64_t block = layout.ObjectBytes(layout.chunk_tokens, LayerGroup::kGlobal);
    // The chunks of a step stay on the device; if the host memory is full, further chunks, too.
    if (strategy == KvStrategy::kOffloaded && block > 0)
      global =
          std::max(std::min<uint64_t>(chunks, 2), chunks - std::min(chunks, offload_bytes / block));
    // Static KV reserves twice the blocks: if the prompt is saved, blocks that leave the window
    // stay in use.
    local = std::min(chunks, strategy == KvStrategy::kStatic ? 2 * seen : seen);
    bytes = global * block + local * layout.ObjectBytes(layout.chunk_tokens, LayerGroup::kLocal);
    if (layout.quantization.is_on())  // unquantized rows of a step, which lie in at most two chunks
      bytes += 2 * layout.layers.size() * layout.PlainSliceBytes(layout.chunk_tokens);
  }
  uint64_t global = 0, local = 0, bytes = 0;
};

absl::Status RestoreObject(const KvLayout& layout, const std::shared_ptr<const KvObject>& owner,
                           InvariantKv* kv) {
  const KvObject& object = *owner;
  const bool whole = object.id.tokens == layout.chunk_tokens;
  const bool from_host = kv->is_offloaded() && object.id.group == LayerGroup::kGlobal;
  const KvBlock& block = kv->is_on_device() && !from_host ? object.device_block : object.bytes;
  if (whole && block != nullptr && !from_host) return kv->Adopt(object.id, block);
  if (absl::Status complete = AwaitBytes(object); !complete.ok()) return complete;
  if (whole && block != nullptr) {
    const absl::Status adopted = kv->Adopt(object.id, block, from_host);
    // If the host memory is full, the chunk is copied to the device.
    if (!absl::IsResourceExhausted(adopted)) return adopted;
  }
  std::vector<const std::byte*> slices;
  const size_t layers = layout.LayerCount(object.id.group);
  for (size_t i = 0; i < layers; ++i) {
    slices.push_back(SliceOf(object, i, layout.SliceBytes(object.id.tokens)));
  }
  return kv->CopyIn(object.id, slices, object.device_bytes != nullptr, owner);
}

}  // namespace

InvariantRunner::InvariantRunner(std::unique_ptr<InvariantGemma> gemma, KvChoice kv,
                                 std::vector<std::string> notes)
    : gemma_(std::move(gemma)),
      kv_(std::move(kv)),
      notes_(gemma_->notes()),
      device_kind_(gemma_->device_kind()) {
  notes_.insert(notes_.end(), notes.begin(), notes.end());
}

ModelRunner::KvBytes InvariantRunner::kv_bytes() const {
  const KvBlocks& blocks = gemma_->kv_blocks();
  return {blocks.budget_bytes(), blocks.used_bytes(), blocks.taken_blocks()};
}

uint64_t InvariantRunner::MissingKvBytes(const SequenceKv* kv, int tokens,
                                         const KvChoice& choice) const {
  // A sequence with static KV takes all its memory in its first step.
  if (choice.strategy == KvStrategy::kStatic && kv != nullptr && kv->length() > 0) return 0;
  const InvariantKv empty = gemma_->NewKv(choice.quantization);
  const auto most = [&](int length) {
    const auto count = static_cast<uint64_t>(length);
    return MostBlocks(empty.layout(), count, choice.strategy,
                      may_offload() ? gemma_->offload_blocks()->budget_bytes() : 0)
        .bytes;
  };
  const uint64_t all = most(tokens);
  return all - std::min(all, kv == nullptr ? 0 : most(kv->length()));
}

bool InvariantRunner::CountsKvBytes(const KvObject& object) const {
  const KvBlock& block = object.device_block != nullptr ? object.device_block : object.bytes;
  return block != nullptr && gemma_->kv_blocks().Owns(block);
}

// The identity omits the machine and the number of threads: in class invariant, the bits depend on
// neither.
absl::StatusOr<ComputeIdentity> InvariantRunner::Identify(const KvLayout& layout) {
  ComputeIdentity identity;
  identity.device_kind = device_kind_;
  identity.compute_version = absl::StrCat("hearth kernels ", InvariantGemma::kKernelsVersion,
                                          ", splits of ", layout.chunk_tokens);
  const WeightForm form = gemma_->weights();
  if (form == WeightForm::kQ8_0 || form == WeightForm::kQ4_0) {
    identity.weights = absl::StrCat(WeightFormName(form), " by quantizer ", kQuantizerVersion);
  }
  if (gemma_->arithmetic() != Arithmetic::kFloat32) identity.arithmetic = arithmetic();
  return identity;
}

absl::StatusOr<std::unique_ptr<SequenceKv>> InvariantRunner::NewKv(int tokens,
                                                                   const KvChoice& choice) {
  auto kv = std::make_unique<InvariantKv>(gemma_->NewKv(choice.quantization));
  if (choice.strategy == KvStrategy::kStatic) {
    const MostBlocks most(kv->layout(), static_cast<uint64_t>(tokens), choice.strategy);
    kv->ReserveBlocks(most.global, most.local);
  }
  if (choice.strategy == KvStrategy::kOffloaded) Offload(kv.get());
  return kv;
}

bool InvariantRunner::Offload(SequenceKv* kv) {
  if (BlocksOf(kv)->is_offloaded()) return false;
  BlocksOf(kv)->Offload(gemma_->offload_blocks());
  return true;
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

absl::Status InvariantRunner::Restore(const KvLayout& layout, uint32_t boundary,
                                      const KvObjects& objects, SequenceKv* kv) {
  InvariantKv* blocks = BlocksOf(kv);
  blocks->BeginRestore(static_cast<int>(boundary));
  absl::Status restored;
  for (const auto& object : objects) {
    if (restored.ok()) restored = RestoreObject(layout, object, blocks);
  }
  if (restored.ok()) {
    blocks->FinishRestore();
    restored = CheckLent(objects);  // all copies have ended
  }
  // If it failed, drop the restored blocks: shared blocks must not be written.
  if (!restored.ok()) blocks->BeginRestore(0);
  return restored;
}

absl::Status InvariantRunner::MakeRoom(SequenceKv* kv, int tokens) {
  return BlocksOf(kv)->MakeRoom(tokens);
}

absl::Status InvariantRunner::Step(absl::Span<const StepPart> parts) {
  const absl::Status started = Start(parts);
  return started.ok() ? Finish() : started;
}

absl::Status InvariantRunner::Start(absl::Span<const StepPart> parts) {
  started_.clear();
  for (const StepPart& part : parts) {
    const int want = part.logits == nullptr ? 0 : static_cast<int>(part.wanted);
    started_.push_back({BlocksOf(part.kv), part.tokens, want, part.logits, part.greedy});
  }
  return gemma_->Start(started_);
}

void InvariantRunner::Forget(SequenceKv* kv, int length) {
  assert(length <= kv->length());
  BlocksOf(kv)->Rewind(length);
  BlocksOf(kv)->ReleaseRoom();
}

std::string InvariantRunner::device_failure() const {
  const std::shared_ptr<Device> device = gemma_->kv_blocks().memory().device();
  if (device == nullptr || device->error().empty()) return "";
  return absl::StrCat("device: ", device->error());
}

}  // namespace hearth
