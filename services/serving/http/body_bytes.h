// BodyBytes: the bytes of a request's body. They come in blocks of one size, and are joined when
// the body is whole.
//
// A body that doubled would leave gaps in the heap, and take up to twice its bytes.
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

  // What a body of `bytes` takes that gets at most `most` bytes: whole blocks, or less than one.
  static size_t CapacityFor(size_t bytes, size_t most);
  // REQUIRES: `capacity` is CapacityFor's. Allocates it as far as it is one block.
  void Reserve(size_t capacity);
  void Append(absl::string_view bytes);
  // Makes one text of the blocks, each of which is freed once it is copied.
  void Join();

  size_t size() const { return first_.size() + rest_bytes_; }
  bool empty() const { return first_.empty(); }
  // REQUIRES: it was joined, or has at most a block.
  absl::string_view view() const {
    assert(rest_.empty());
    return first_;
  }

 private:
  std::string first_;                          // until it is joined, at most a block
  std::vector<std::unique_ptr<char[]>> rest_;  // blocks; all but the last one are full
  size_t rest_bytes_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_HTTP_BODY_BYTES_H_
