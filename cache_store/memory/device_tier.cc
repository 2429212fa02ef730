#include "cache_store/memory/device_tier.h"

#include <cassert>
#include <optional>

#include "absl/strings/str_cat.h"
#include "cache_store/base/range_allocator.h"

namespace hearth {
namespace {

uint64_t RoundUp(uint64_t bytes) {
  return (bytes + kSegmentGranuleBytes - 1) / kSegmentGranuleBytes * kSegmentGranuleBytes;
}

}  // namespace

// The device memory and its free ranges. It lives until the tier and the last DeviceRef are
// destroyed.
struct DeviceTier::Pool {
  Pool(std::shared_ptr<DeviceMemory> device_memory, bool shared)
      : memory(std::move(device_memory)) {
    SegmentLayout layout;
    layout.data_bytes = memory->size_bytes() / kSegmentGranuleBytes * kSegmentGranuleBytes;
    if (layout.data_bytes == 0) return;
    absl::MutexLock lock(&mu);
    free.Free(0, layout.data_bytes);
    if (!shared) return;
    const absl::StatusOr<ExportedMemory> exported = memory->Export();
    if (!exported.ok()) return;
    layout.device = exported->handle;
    memory_fd = exported->fd;
    absl::StatusOr<std::unique_ptr<SegmentFile>> file = SegmentFile::Create(layout);
    if (file.ok()) segment = *std::move(file);
  }

  const std::shared_ptr<DeviceMemory> memory;
  std::unique_ptr<SegmentFile> segment;  // null: the memory is not shared with other processes
  int memory_fd = -1;                    // belongs to `memory`
  absl::Mutex mu;
  RangeAllocator free ABSL_GUARDED_BY(mu);
};

DeviceTier::DeviceTier(std::shared_ptr<DeviceMemory> memory, OnLost on_lost, bool shared)
    : pool_(std::make_shared<Pool>(std::move(memory), shared)), on_lost_(std::move(on_lost)) {}

const SegmentFile* DeviceTier::segment() const { return pool_->segment.get(); }

int DeviceTier::memory_fd() const {
  assert(pool_->segment != nullptr);
  return pool_->memory_fd;
}

DeviceRef DeviceTier::Find(uint64_t object) {
  absl::MutexLock lock(&mu_);
  const auto it = entries_.find(object);
  if (it == entries_.end()) return nullptr;
  order_.splice(order_.begin(), order_, it->second);
  it->second->read = true;
  return it->second->copy;
}

bool DeviceTier::Has(uint64_t object) const {
  absl::MutexLock lock(&mu_);
  return entries_.contains(object);
}

// Evicts copies that no DeviceRef uses, least recently used first, until a range of `bytes` is
// free. Returns false if that is impossible; then nothing was evicted, except if the free memory is
// fragmented.
bool DeviceTier::MakeRoom(uint64_t bytes) {
  mu_.AssertHeld();
  assert(bytes > 0 && bytes % kSegmentGranuleBytes == 0);
  uint64_t possible = 0;
  {
    absl::MutexLock lock(&pool_->mu);
    possible = pool_->free.free_bytes();
  }
  for (const Entry& entry : order_) {
    // use_count 1: only the tier refers to the copy. No other thread can take a reference now,
    // because that needs mu_.
    if (entry.copy.use_count() == 1) possible += RoundUp(entry.copy->range.bytes);
  }
  if (possible < bytes) return false;
  for (auto it = order_.end(); it != order_.begin();) {
    --it;
    if (it->copy.use_count() > 1) continue;
    ++evicted_;
    it = Forget(it);
    absl::MutexLock lock(&pool_->mu);
    const std::optional<uint64_t> range = pool_->free.Allocate(bytes);
    if (!range.has_value()) continue;
    pool_->free.Free(*range, bytes);
    return true;
  }
  return false;
}

std::list<DeviceTier::Entry>::iterator DeviceTier::Forget(std::list<Entry>::iterator entry) {
  mu_.AssertHeld();
  assert(bytes_ >= entry->copy->range.bytes);
  bytes_ -= entry->copy->range.bytes;
  if (!entry->read) unread_bytes_ += entry->copy->range.bytes;
  const size_t erased = entries_.erase(entry->object);
  assert(erased == 1);
  return order_.erase(entry);
}

DeviceRef DeviceTier::Reserve(uint64_t bytes) {
  assert(bytes > 0);
  const uint64_t rounded = RoundUp(bytes);
  const auto take = [&]() -> std::optional<uint64_t> {
    absl::MutexLock lock(&pool_->mu);
    return pool_->free.Allocate(rounded);
  };
  std::optional<uint64_t> range = take();
  if (!range.has_value()) {
    absl::MutexLock lock(&mu_);
    if (MakeRoom(rounded)) range = take();
  }
  if (!range.has_value()) return nullptr;
  assert(*range % kSegmentGranuleBytes == 0 && *range + rounded <= pool_->memory->size_bytes());
  const uint64_t generation =
      pool_->segment == nullptr ? 0 : pool_->segment->generation(*range).load();
  auto* const copy =
      new DeviceCopy{pool_->memory->data() + *range, SegmentRange{*range, bytes, generation}};
  return DeviceRef(copy, [pool = pool_, offset = *range, rounded](const DeviceCopy* ended) {
    delete ended;
    if (pool->segment != nullptr) pool->segment->generation(offset).fetch_add(1);
    absl::MutexLock lock(&pool->mu);
    pool->free.Free(offset, rounded);
  });
}

absl::StatusOr<DeviceRef> DeviceTier::CopyIn(absl::Span<const SliceWrite> slices) {
  {
    absl::MutexLock lock(&mu_);
    if (!lost_.ok()) return lost_;
  }
  uint64_t bytes = 0;
  for (const SliceWrite& write : slices) bytes += write.view.bytes.size();
  assert(bytes > 0);
  DeviceRef copy = Reserve(bytes);
  if (copy == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("gpu tier full: no free range of ", bytes,
                     " bytes; total bytes of the tier: ", pool_->memory->size_bytes()));
  }
  uint64_t at = copy->range.offset;
  absl::Status status;
  for (const SliceWrite& write : slices) {
    if (status.ok()) status = pool_->memory->StartCopyIn(at, write.view.bytes);
    at += write.view.bytes.size();
  }
  assert(at == copy->range.offset + bytes);
  // Wait even after an error: started copies must end before their range or the host's bytes are
  // reused.
  const absl::Status ended = pool_->memory->Wait();
  status.Update(ended);
  if (status.ok()) status = Verify(*copy, slices);
  if (!status.ok()) return Noted(std::move(status));
  return copy;
}

absl::Status DeviceTier::Verify(const DeviceCopy& copy, absl::Span<const SliceWrite> slices) {
  uint64_t at = copy.range.offset;
  for (const SliceWrite& write : slices) {
    const size_t bytes = write.view.bytes.size();
    read_back_.resize(bytes);
    absl::Status status = pool_->memory->StartCopyOut(at, absl::MakeSpan(read_back_));
    status.Update(pool_->memory->Wait());
    if (!status.ok()) return status;
    if (SliceDigest(read_back_.data(), bytes) != write.slice.digest) {
      return absl::DataLossError(absl::StrCat("gpu tier: a slice of layer ", write.slice.layer,
                                              " differs on the device from what was copied there"));
    }
    at += bytes;
  }
  return absl::OkStatus();
}

// If `status` says that the device is lost, forgets all copies.
absl::Status DeviceTier::Noted(absl::Status status) {
  if (!absl::IsUnavailable(status)) return status;
  std::list<Entry> gone;
  {
    absl::MutexLock lock(&mu_);
    if (!lost_.ok()) return status;
    lost_ = status;
    entries_.clear();
    gone.swap(order_);
    bytes_ = 0;
  }
  if (on_lost_ != nullptr) on_lost_(status);
  return status;
}

void DeviceTier::MakeVisible(uint64_t object, DeviceRef copy) {
  absl::MutexLock lock(&mu_);
  if (!lost_.ok()) return;
  assert(copy != nullptr);
  bytes_ += copy->range.bytes;
  assert(bytes_ <= pool_->memory->size_bytes());
  written_bytes_ += copy->range.bytes;
  order_.push_front({object, std::move(copy), false});
  const bool inserted = entries_.emplace(object, order_.begin()).second;
  assert(inserted);
}

void DeviceTier::Erase(absl::Span<const uint64_t> objects) {
  absl::MutexLock lock(&mu_);
  for (const uint64_t object : objects) {
    const auto it = entries_.find(object);
    if (it != entries_.end()) Forget(it->second);
  }
}

DeviceTier::Usage DeviceTier::usage() const {
  absl::MutexLock lock(&mu_);
  assert(order_.size() == entries_.size() && (bytes_ == 0) == entries_.empty());
  Usage usage;
  usage.capacity_bytes = lost_.ok() ? pool_->memory->size_bytes() : 0;
  usage.bytes = bytes_;
  usage.evicted_objects = evicted_;
  usage.written_bytes = written_bytes_;
  usage.unread_bytes = unread_bytes_;
  usage.objects.reserve(entries_.size());
  for (const auto& [object, entry] : entries_) usage.objects.push_back(object);
  return usage;
}

}  // namespace hearth
