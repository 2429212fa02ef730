#include "worker/engine/runner/gemma_runner.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace hearth {

namespace {

// Minimum capacity of a KV cache. Capacities are doubled as needed, so that later requests can
// reuse a cache. 4,096 tokens of the 270M model's global layers take 24 MiB.
constexpr int kMinCapacityTokens = 4096;

bool Smaller(const KvCache& a, const KvCache& b) { return a.capacity() < b.capacity(); }

}  // namespace

KvCachePool::KvCachePool(const Gemma* gemma, int context_tokens, size_t max_free)
    : gemma_(gemma), context_tokens_(context_tokens), max_free_(max_free) {}

absl::StatusOr<KvCache> KvCachePool::Acquire(int tokens) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->capacity() >= tokens && (best == free_.end() || Smaller(*it, *best))) best = it;
  }
  if (best != free_.end()) {
    assert(best->capacity() >= tokens);
    KvCache kv = std::move(*best);
    free_.erase(best);
    return kv;
  }
  int capacity = kMinCapacityTokens;
  while (capacity < tokens) capacity *= 2;
  return gemma_->NewKvCache(std::max(tokens, std::min(capacity, context_tokens_)));
}

void KvCachePool::Release(KvCache kv) {
  kv.Reset();
  assert(free_.size() <= max_free_);
  free_.push_back(std::move(kv));
  if (free_.size() > max_free_) {
    free_.erase(std::min_element(free_.begin(), free_.end(), Smaller));
  }
}

namespace {

// REQUIRES: `kv` was made by NewKv, so it is a KvCache.
KvCache* CacheOf(SequenceKv* kv) { return static_cast<KvCache*>(kv); }

// A KvCache that adds its bytes to `used` for as long as it exists.
class CountedCache : public KvCache {
 public:
  CountedCache(KvCache kv, uint64_t bytes, std::atomic<uint64_t>* used)
      : KvCache(std::move(kv)), bytes_(bytes), used_(used) {
    *used_ += bytes_;
  }
  ~CountedCache() override {
    assert(*used_ >= bytes_);
    *used_ -= bytes_;
  }

 private:
  const uint64_t bytes_;
  std::atomic<uint64_t>* const used_;
};

}  // namespace

GemmaRunner::GemmaRunner(std::unique_ptr<Gemma> gemma, Exactness exactness, size_t max_free,
                         uint64_t kv_budget_bytes, std::vector<std::string> notes)
    : gemma_(std::move(gemma)),
      exactness_(exactness),
      kv_budget_bytes_(kv_budget_bytes),
      kv_caches_(gemma_.get(), gemma_->config().max_position_embeddings,
                 kv_budget_bytes > 0 ? 0 : max_free),
      notes_(gemma_->notes()) {
  notes_.insert(notes_.end(), notes.begin(), notes.end());
}

absl::StatusOr<ComputeIdentity> GemmaRunner::Identify(const KvLayout& layout) {
  ComputeIdentity identity;
  identity.device_kind = gemma_->device_kind();
  identity.compute_version = gemma_->compute_version();
  identity.cpu_capability = gemma_->cpu_capability();
  identity.threads = gemma_->threads();
  if (layout.exactness != Exactness::kExact) return identity;
  absl::StatusOr<KvCache> kv =
      kv_caches_.Acquire(CanaryTokens(gemma_->config(), layout.chunk_tokens));
  if (!kv.ok()) return kv.status();
  absl::StatusOr<Digest> canary = ComputeCanary(*gemma_, layout, &*kv);
  if (!canary.ok()) return canary.status();
  identity.canary = *canary;
  kv_caches_.Release(*std::move(kv));
  return identity;
}

uint64_t GemmaRunner::MissingKvBytes(const SequenceKv* kv, int tokens,
                                     const KvChoice& /*choice*/) const {
  // An existing cache already has all its memory.
  return kv == nullptr ? gemma_->KvCacheBytes(tokens) : 0;
}

absl::StatusOr<std::unique_ptr<SequenceKv>> GemmaRunner::NewKv(int tokens,
                                                               const KvChoice& /*choice*/) {
  if (kv_budget_bytes_ == 0) {
    absl::StatusOr<KvCache> kv = kv_caches_.Acquire(tokens);
    if (!kv.ok()) return kv.status();
    return std::make_unique<KvCache>(*std::move(kv));
  }
  const uint64_t bytes = gemma_->KvCacheBytes(tokens);
  if (kv_used_bytes_ + bytes > kv_budget_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("kv-bytes: the cache needs ", bytes,
                                                     " bytes, but ", kv_used_bytes_.load(), " of ",
                                                     kv_budget_bytes_, " are in use"));
  }
  absl::StatusOr<KvCache> kv = gemma_->NewKvCache(tokens);
  if (!kv.ok()) return kv.status();
  return std::make_unique<CountedCache>(*std::move(kv), bytes, &kv_used_bytes_);
}

void GemmaRunner::Release(std::unique_ptr<SequenceKv> kv) {
  if (kv_budget_bytes_ == 0) kv_caches_.Release(std::move(*CacheOf(kv.get())));
}

// Copies one layer at a time, through host memory.
void GemmaRunner::Fork(const SequenceKv& kv, SequenceKv* fork) {
  KvCache* copy = CacheOf(fork);
  const int end = kv.length();
  copy->BeginRestore(end);
  for (int layer = 0; layer < copy->num_layers(); ++layer) {
    const int begin = copy->first_held(layer);
    std::vector<std::byte> rows(static_cast<size_t>(end - begin) *
                                static_cast<size_t>(copy->token_bytes()));
    kv.CopyOut(layer, begin, end, begin, end - begin, rows.data());
    copy->CopyIn(layer, begin, end, begin, end - begin, rows.data());
  }
  copy->FinishRestore(end);
}

absl::Status GemmaRunner::Restore(const KvLayout& layout, uint32_t boundary,
                                  const KvObjects& objects, SequenceKv* kv) {
  RestoreSnapshot(layout, boundary, objects, CacheOf(kv));
  return CheckLent(objects);
}

absl::Status GemmaRunner::Step(absl::Span<const StepPart> parts) {
  assert(parts.size() == 1 && parts[0].wanted == 1);
  absl::Status stepped = StepOne(parts[0]);
  // After a failure of a GPU, every call of CUDA returns its error.
  if (absl::IsInternal(stepped) && gemma_->device_kind() != "cpu" && device_failure_.empty() &&
      !gemma_->FreeDeviceBytes().ok()) {
    device_failure_ = std::string(stepped.message());
  }
  return stepped;
}

absl::Status GemmaRunner::StepOne(const StepPart& part) {
  KvCache* cache = CacheOf(part.kv);
  assert(cache->length() < cache->capacity());
  if (part.logits == nullptr) return gemma_->Step(cache, part.tokens, nullptr);
  std::vector<float> logits = std::move(*part.logits).Take();
  const absl::Status stepped = gemma_->Step(cache, part.tokens, &logits);
  *part.logits = StepLogits(std::move(logits));
  return stepped;
}

}  // namespace hearth
