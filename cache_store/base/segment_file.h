// SegmentFile: a shared memory segment that other processes may map (proto/segment_format.h).
//
// The memory is anonymous: it is freed when the last process unmaps it. Only the creator can write.
// The segment never shrinks, so a reader never gets SIGBUS. Thread safety: constant after Create(),
// except the generations, which are atomics.
#ifndef HEARTH_CACHE_STORE_BASE_SEGMENT_FILE_H_
#define HEARTH_CACHE_STORE_BASE_SEGMENT_FILE_H_

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "proto/segment_format.h"

namespace hearth {

class SegmentFile {
 public:
  // Creates a segment and sets the id in its layout. kResourceExhausted names the system call that
  // failed.
  static absl::StatusOr<std::unique_ptr<SegmentFile>> Create(SegmentLayout layout);
  ~SegmentFile();
  SegmentFile(const SegmentFile&) = delete;
  SegmentFile& operator=(const SegmentFile&) = delete;

  const SegmentLayout& layout() const { return layout_; }
  int fd() const { return fd_; }  // descriptor, open for reading and writing
  std::byte* data() const { return mapping_ + layout_.data_offset(); }
  // Returns the generation counter of the range that begins at `offset`.
  SegmentGeneration& generation(uint64_t offset) const {
    assert(offset < layout_.data_bytes && offset % kSegmentGranuleBytes == 0);
    auto* const table = reinterpret_cast<SegmentGeneration*>(mapping_ + kSegmentHeaderBytes);
    return table[offset / kSegmentGranuleBytes];
  }

 private:
  explicit SegmentFile(const SegmentLayout& layout) : layout_(layout) {}

  const SegmentLayout layout_;
  int fd_ = -1;
  std::byte* mapping_ = nullptr;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_SEGMENT_FILE_H_
