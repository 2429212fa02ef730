// SegmentClient: a worker's view of memory that a store on the same host shares: RAM, or that of a
// device.
//
// Maps the segment that a store offers, copies slices out of it, and unmaps it as soon as the store
// is gone, so that a dead store's memory is freed when the restores from it end. A copy says
// whether the range still held the slice that the store named (proto/segment_format.h). Thread
// safety: all methods from any thread. Errors matter to the log only: without a segment the bytes
// come over the wire.
#ifndef HEARTH_SERVICES_RPC_SEGMENT_CLIENT_H_
#define HEARTH_SERVICES_RPC_SEGMENT_CLIENT_H_

#include <cassert>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "cache_store/base/device_memory.h"
#include "proto/segment_format.h"
#include "proto/slice_hasher.h"
#include "services/rpc/segment_socket.h"

namespace hearth {

// A segment in this process's address space, read only.
class MappedSegment {
 public:
  // kFailedPrecondition: not a segment that can be read safely. `import` maps the data of a
  // device's segment, and fails for others; null: only the generations of one are mapped.
  static absl::StatusOr<std::shared_ptr<const MappedSegment>> Map(
      const FileDescriptor& file, const ImportDevice& import = nullptr);
  ~MappedSegment();

  const SegmentId& id() const { return layout_.id; }
  const SegmentLayout& layout() const { return layout_; }
  // kOutOfRange when the range lies outside the data, kAborted when it was used again.
  absl::Status Check(const SegmentRange& range) const;
  // The range's address, valid while this lives; its bytes are right only while Check is OK.
  // REQUIRES: Check found it inside; the data lies in the file.
  const std::byte* At(const SegmentRange& range) const {
    assert(!layout_.device.has_value());
    assert(range.offset < layout_.data_bytes && range.bytes <= layout_.data_bytes - range.offset);
    return mapping_ + layout_.data_offset() + range.offset;
  }
  // The data of a device's segment, if it was imported.
  ImportedMemory* device() const { return device_.get(); }
  // Copies the range to `to`, and adds it to `hasher`. kAborted when it was used again before the
  // copy was complete. REQUIRES: the data lies in the file. `between`, for tests, runs after the
  // bytes were copied, before the generation is checked again.
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
  // `import`: for segments of a device; null: for those in RAM.
  explicit SegmentClient(ImportDevice import = nullptr) : import_(std::move(import)) {}
  ~SegmentClient();

  // The segment of a store that is alive; null when there is none.
  std::shared_ptr<const MappedSegment> current() const;
  // Maps the segment `id` that a store offers at `socket`. An id that failed once is not tried
  // again. An error says why there is no segment.
  absl::Status MapOffered(const std::string& socket, const SegmentId& id);
  // Copies ranges of a device's segment to this process's own memory there. kAborted: a range was
  // used again, or the store went away, before the copies were complete.
  absl::StatusOr<std::vector<std::shared_ptr<const std::byte>>> CopyOnDevice(
      const MappedSegment& segment, absl::Span<const SegmentRange> ranges) const;

 private:
  void Drop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(take_mu_);
  void Watch(int connection, int stop);

  const ImportDevice import_;
  absl::Mutex take_mu_;  // one at a time; before mu_
  SegmentId tried_ ABSL_GUARDED_BY(take_mu_){};
  absl::Status problem_ ABSL_GUARDED_BY(take_mu_);
  FileDescriptor connection_ ABSL_GUARDED_BY(take_mu_), stop_ ABSL_GUARDED_BY(take_mu_);
  std::thread watcher_ ABSL_GUARDED_BY(take_mu_);
  mutable absl::Mutex mu_;
  std::shared_ptr<const MappedSegment> segment_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_RPC_SEGMENT_CLIENT_H_
