// BodyBytes: the bytes of a request's body, in blocks of one size. Join makes one string of them
// when the body is complete.
//
// A string that grows by doubling would leave gaps in the heap and take up to twice its bytes.
// Thread safety: none.
#ifndef HEARTH_SERVICES_SERVING_HTTP_BODY_BYTES_H_
#define HEARTH_SERVICES_SERVING_HTTP_BODY_BYTES_H_

#include <cassert>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace hearth {

class BodyBytes {
 public:
  static constexpr size_t kBlockBytes = size_t{64} << 10;

  // Returns the capacity for a body that has `bytes` bytes now and `most` bytes in the end: whole
  // blocks, or less than one block.
  static size_t CapacityFor(size_t bytes, size_t most);
  // Gives the first block a capacity of `capacity` bytes, at most one block. REQUIRES: CapacityFor
  // returned `capacity`.
  void Reserve(size_t capacity);
  void Append(absl::string_view bytes);
  // Joins the blocks into one string; frees each block once it is copied.
  void Join();

  size_t size() const { return first_.size() + rest_bytes_; }
  bool empty() const { return first_.empty(); }
  // REQUIRES: Join was called, or the body has at most one block.
  absl::string_view view() const {
    assert(rest_.empty());
    return first_;
  }

 private:
  std::string first_;  // before Join: the first block; after Join: the whole body
  // blocks after the first; all but the last one are full
  std::vector<std::unique_ptr<char[]>> rest_;
  size_t rest_bytes_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_HTTP_BODY_BYTES_H_
