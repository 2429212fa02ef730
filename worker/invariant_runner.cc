#include "worker/invariant_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// Of a prefill that nothing else waits for: products of as many rows cost the least for each.
constexpr uint32_t kAloneStepTokens = 512;

// What NewKv made is an InvariantKv.
InvariantKv* BlocksOf(SequenceKv* kv) { return static_cast<InvariantKv*>(kv); }

absl::Status RestoreObject(const KvLayout& layout, const KvObject& object, InvariantKv* kv) {
  const bool whole = object.id.tokens == layout.chunk_tokens;
  if (whole && object.bytes != nullptr) return kv->Adopt(object.id, object.bytes);
  std::vector<const std::byte*> slices;
  const size_t layers = layout.LayersOf(object.id.group).size();
  for (size_t i = 0; i < layers; ++i) {
    slices.push_back(SliceOf(object, i, layout.SliceBytes(object.id.tokens)));
  }
  return kv->CopyIn(object.id, slices);
}

}  // namespace

InvariantRunner::InvariantRunner(std::unique_ptr<InvariantGemma> gemma)
    : gemma_(std::move(gemma)) {}

uint32_t InvariantRunner::step_tokens(const KvLayout& layout) const {
  return std::max(kAloneStepTokens, layout.chunk_tokens);
}

ModelRunner::KvBytes InvariantRunner::kv_bytes() const {
  return {gemma_->kv_blocks().budget_bytes(), gemma_->kv_blocks().used_bytes()};
}

// No machine and no number of threads is in it: the bits depend on neither.
absl::StatusOr<ComputeIdentity> InvariantRunner::Identify(const KvLayout& layout) {
  ComputeIdentity identity;
  identity.device_kind = device_kind_;
  identity.compute_version = absl::StrCat("hearth kernels ", InvariantGemma::kKernelsVersion,
                                          ", splits of ", layout.chunk_tokens);
  return identity;
}

// What is asked is whether there is room now: others may take it before it is used.
absl::StatusOr<std::unique_ptr<SequenceKv>> InvariantRunner::NewKv(int tokens,
                                                                   const KvObjects& restored) {
  auto kv = std::make_unique<InvariantKv>(gemma_->NewKv());
  const KvLayout& layout = kv->layout();
  const uint64_t chunk = layout.chunk_tokens;
  const uint64_t splits = (static_cast<uint64_t>(tokens) + chunk - 1) / chunk;
  const uint64_t seen = (uint64_t{layout.window} + step_tokens(layout) + 2 * (chunk - 1)) / chunk;
  uint64_t bytes =
      splits * layout.ObjectBytes(layout.chunk_tokens, LayerGroup::kGlobal) +
      std::min(splits, seen) * layout.ObjectBytes(layout.chunk_tokens, LayerGroup::kLocal);
  const KvBytes room = kv_bytes();
  if (bytes > room.budget) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv-bytes: ", tokens, " tokens may need ", bytes, " bytes of ", room.budget,
                     " in all: ask for fewer tokens (max_new_tokens counts), or raise --kv-bytes"));
  }
  for (const auto& object : restored) {
    // Held by the pool or another sequence, and in use as it is counted.
    const bool shared =
        object->id.tokens == chunk && gemma_->kv_blocks().Counts(object->bytes, object->size_bytes);
    if (shared) bytes -= std::min(bytes, object->size_bytes);
  }
  if (bytes <= room.budget - room.used) return kv;
  return absl::ResourceExhaustedError(absl::StrCat("kv-bytes: ", tokens, " tokens may need ", bytes,
                                                   " bytes, and ", room.used, " of ", room.budget,
                                                   " are in use"));
}

absl::Status InvariantRunner::Restore(const KvLayout& layout, uint32_t boundary,
                                      const KvObjects& objects, SequenceKv* kv) {
  InvariantKv* blocks = BlocksOf(kv);
  blocks->BeginRestore(static_cast<int>(boundary));
  for (const auto& object : objects) {
    if (absl::Status s = RestoreObject(layout, *object, blocks); !s.ok()) return s;
  }
  blocks->FinishRestore();
  if (LoansHold(objects)) return absl::OkStatus();
  return absl::AbortedError("the loan ended before the copy was over");
}

absl::Status InvariantRunner::Step(SequenceKv* kv, absl::Span<const int32_t> tokens,
                                   std::vector<float>* logits) {
  return gemma_->Step(BlocksOf(kv), tokens, logits == nullptr ? 0 : 1, logits);
}

}  // namespace hearth
