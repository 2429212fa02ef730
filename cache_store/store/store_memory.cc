// Where the bytes of slices lie: in the arena, which workers on the same host may map.
#include <cstring>
#include <utility>

#include "cache_store/store/sessions.h"

namespace hearth {

std::shared_ptr<std::byte> Store::AllocateSlice(size_t bytes) {
  std::shared_ptr<std::byte> memory;
  if (arena_ != nullptr) memory = arena_->Allocate(bytes);
  return memory != nullptr ? memory : hearth::AllocateSlice(bytes);
}

// The same bytes where workers can see them, when that is worth a copy.
SliceView Store::InArena(const SliceView& slice) {
  if (!options_.shared_memory || arena_ == nullptr) return slice;
  std::shared_ptr<std::byte> memory = arena_->Allocate(slice.bytes.size());
  if (memory == nullptr) return slice;
  std::memcpy(memory.get(), slice.bytes.data(), slice.bytes.size());
  const absl::Span<const std::byte> bytes(memory.get(), slice.bytes.size());
  return SliceView{std::move(memory), bytes};
}

std::optional<SharedMemory> Store::shared_memory() const {
  if (!options_.shared_memory || arena_ == nullptr) return std::nullopt;
  return SharedMemory{arena_->segment_fd(), arena_->layout()};
}

void Store::WaitForMemory() {
  if (arena_ != nullptr) arena_->WaitUntilAhead();
}

std::optional<SliceView> FetchSessionImpl::InHost(size_t object, uint32_t layer) {
  const absl::StatusOr<size_t> place = PlaceOf(object, layer);
  if (!place.ok()) return std::nullopt;
  const SliceRef ref = objects_[object]->Slice(*place);
  absl::StatusOr<std::optional<SliceView>> held = store_->unverified_host_->Read(ref);
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
  store_->counters_.Add(Counter::kBytesReadHost, bytes);
  store_->read_seconds_[static_cast<size_t>(Tier::kHost)].Observe(stopwatch.Elapsed());
  NoteServed(object, Tier::kHost);
}

std::optional<SegmentRange> FetchSessionImpl::ShareSlice(size_t object, uint32_t layer) {
  if (store_->arena_ == nullptr) return std::nullopt;
  const Stopwatch stopwatch;
  std::optional<SliceView> held = InHost(object, layer);
  if (!held.has_value()) return std::nullopt;
  const std::optional<SegmentRange> range =
      store_->arena_->RangeOf(held->bytes.data(), held->bytes.size());
  if (!range.has_value()) return std::nullopt;
  store_->counters_.Add(Counter::kBytesShared, held->bytes.size());
  NoteUnverified(object, held->bytes.size(), stopwatch);
  shared_.push_back(*std::move(held));
  return range;
}

}  // namespace hearth
