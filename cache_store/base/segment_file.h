// SegmentFile: a memory segment that other processes may map (proto/segment_format.h).
//
// Anonymous shared memory: it is freed with the last process that maps it; only the creator writes
// to it; it never shrinks, so a reader cannot fault on it. Thread safety: constant after Create();
// generations are atomics.
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
  // Sets the layout's id. kResourceExhausted names the system call that the kernel refused.
  static absl::StatusOr<std::unique_ptr<SegmentFile>> Create(SegmentLayout layout);
  ~SegmentFile();
  SegmentFile(const SegmentFile&) = delete;
  SegmentFile& operator=(const SegmentFile&) = delete;

  const SegmentLayout& layout() const { return layout_; }
  int fd() const { return fd_; }  // open for reading and writing
  std::byte* data() const { return mapping_ + layout_.data_offset(); }
  // Returns the generation of the range that begins at `offset`.
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
