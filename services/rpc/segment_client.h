// SegmentClient: a worker's view of memory that a store on the same host shares: RAM, or memory of
// a device.
//
// Maps the segment that a store offers, copies slices from it or refers to them in place, and
// unmaps it as soon as the store has ended, so that the memory of a dead store is freed when the
// restores from it end. A check after the copy reports whether the range still held the slice that
// the store named (proto/segment_format.h). Thread safety: all methods from any thread. Errors are
// only for the log: without a segment, the bytes are sent over the wire.
#ifndef HEARTH_SERVICES_RPC_SEGMENT_CLIENT_H_
#define HEARTH_SERVICES_RPC_SEGMENT_CLIENT_H_

#include <cassert>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/base/device_memory.h"
#include "proto/segment_format.h"
#include "proto/slice_hasher.h"
#include "services/rpc/segment_socket.h"

namespace hearth {

// A segment in this process's address space, read only.
class MappedSegment {
 public:
  // Maps a segment. kFailedPrecondition if the segment cannot be read safely. `import`: maps the
  // data of a device's segment, whose descriptor it receives from `connection`, and fails for a
  // segment in RAM. Null: only the generations of a device's segment are mapped.
  static absl::StatusOr<std::shared_ptr<const MappedSegment>> Map(
      const FileDescriptor& file, const ImportDevice& import = nullptr, int connection = -1);
  ~MappedSegment();

  const SegmentId& id() const { return layout_.id; }
  const SegmentLayout& layout() const { return layout_; }
  // kOutOfRange if the range is outside the data, kAborted if the store has reused it.
  absl::Status Check(const SegmentRange& range) const;
  // Returns the address of a range, on the device if the data is there, valid while this object
  // lives. The bytes are right only while Check is OK. REQUIRES: Check has found the range inside
  // the data; the data of a device's segment was imported.
  const std::byte* At(const SegmentRange& range) const {
    assert(!layout_.device.has_value() || device_ != nullptr);
    assert(range.offset < layout_.data_bytes && range.bytes <= layout_.data_bytes - range.offset);
    return (device_ != nullptr ? device_->data() : mapping_ + layout_.data_offset()) + range.offset;
  }
  // Copies the range to `to`, and adds it to `hasher`. kAborted if the store reused the range
  // before the copy was complete. REQUIRES: the data is in the file. `between` is for tests: it
  // runs after the copy and before the second check of the generation.
  absl::Status Copy(
      const SegmentRange& range, std::byte* to, SliceHasher* hasher,
      absl::FunctionRef<void()> between = [] {}) const;

 private:
  explicit MappedSegment(const SegmentLayout& layout) : layout_(layout) {}

  const SegmentLayout layout_;
  const std::byte* mapping_ = nullptr;
  std::unique_ptr<ImportedMemory> device_;
};

class SegmentClient {
 public:
  // `import`: maps segments of a device; null: segments are in RAM.
  explicit SegmentClient(ImportDevice import = nullptr) : import_(std::move(import)) {}
  ~SegmentClient();

  // Returns the mapped segment of a store that is alive; null if there is none.
  std::shared_ptr<const MappedSegment> current() const;
  // Maps the segment `id` that a store offers at `socket`. An id that has failed before is not
  // tried again. An error is the reason why there is no segment. `is_new`: set to whether this call
  // has tried it.
  absl::Status MapOffered(const std::string& socket, const SegmentId& id, bool* is_new = nullptr);

 private:
  void Drop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(take_mu_);
  void Watch(int connection, int stop);

  const ImportDevice import_;
  absl::Mutex take_mu_;  // held while a segment is mapped or dropped; lock order: before mu_
  SegmentId tried_ ABSL_GUARDED_BY(take_mu_){};
  absl::Status problem_ ABSL_GUARDED_BY(take_mu_);
  FileDescriptor connection_ ABSL_GUARDED_BY(take_mu_), stop_ ABSL_GUARDED_BY(take_mu_);
  std::thread watcher_ ABSL_GUARDED_BY(take_mu_);
  mutable absl::Mutex mu_;
  std::shared_ptr<const MappedSegment> segment_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_SEGMENT_CLIENT_H_
