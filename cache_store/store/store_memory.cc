// Where the bytes of slices lie: in the arena, which workers on the same host may map.
#include <utility>

#include "cache_store/store/sessions.h"

namespace hearth {

std::optional<SharedMemory> Store::shared_memory() const {
  if (!core_->options.shared_memory || core_->tiers.arena == nullptr) return std::nullopt;
  return SharedMemory{core_->tiers.arena->segment_fd(), core_->tiers.arena->layout()};
}

void Store::WaitForMemory() {
  if (core_->tiers.arena != nullptr) core_->tiers.arena->WaitUntilAhead();
}

std::optional<SliceView> FetchSessionImpl::InHost(size_t object, uint32_t layer) {
  const absl::StatusOr<size_t> place = PlaceOf(object, layer);
  if (!place.ok()) return std::nullopt;
  const SliceRef ref = objects_[object]->Slice(*place);
  absl::StatusOr<std::optional<SliceView>> held = store_->core_->tiers.unverified_host->Read(ref);
  // What is wrong with it is ReadSlice's to find out.
  if (!held.ok() || !held->has_value() || (*held)->bytes.size() != ref.bytes) return std::nullopt;
  return **std::move(held);
}

std::optional<SliceView> FetchSessionImpl::PeekSlice(size_t object, uint32_t layer) {
  const Stopwatch stopwatch;
  std::optional<SliceView> held = InHost(object, layer);
  if (held.has_value()) NoteUnverified(object, held->bytes.size(), stopwatch);
  return held;
}

// Handed out from RAM without being read.
void FetchSessionImpl::NoteUnverified(size_t object, size_t bytes, const Stopwatch& stopwatch) {
  store_->core_->Count(Counter::kBytesReadHost, bytes);
  store_->core_->meters.ObserveSliceRead(Tier::kHost, stopwatch.Elapsed());
  NoteServed(object, Tier::kHost);
}

std::optional<SegmentRange> FetchSessionImpl::ShareSlice(size_t object, uint32_t layer) {
  if (store_->core_->tiers.arena == nullptr) return std::nullopt;
  const Stopwatch stopwatch;
  std::optional<SliceView> held = InHost(object, layer);
  if (!held.has_value()) return std::nullopt;
  const std::optional<SegmentRange> range =
      store_->core_->tiers.arena->RangeOf(held->bytes.data(), held->bytes.size());
  if (!range.has_value()) return std::nullopt;
  store_->core_->Count(Counter::kBytesShared, held->bytes.size());
  NoteUnverified(object, held->bytes.size(), stopwatch);
  shared_.push_back(*std::move(held));
  return range;
}

}  // namespace hearth
