// TextList: a list of many short texts, in one buffer.
//
// A text takes its bytes and 4 more. A std::string takes 32 bytes and, above 15 bytes, an
// allocation.
// Thread safety: as std::vector. Invariant: all texts together have less than 4 GiB.
#ifndef HEARTH_WORKER_MODEL_TEXT_LIST_H_
#define HEARTH_WORKER_MODEL_TEXT_LIST_H_

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hearth {

class TextList {
 public:
  // Adds a text of `bytes` bytes; the caller writes them before the next call.
  char* Add(size_t bytes) {
    const size_t begin = texts_.size();
    assert(bytes <= UINT32_MAX - begin);
    texts_.resize(begin + bytes);
    ends_.push_back(static_cast<uint32_t>(texts_.size()));
    return texts_.data() + begin;
  }
  void Add(std::string_view text) { text.copy(Add(text.size()), text.size()); }

  size_t size() const { return ends_.size(); }
  // Valid until the next Add. REQUIRES: at < size().
  std::string_view operator[](size_t at) const {
    assert(at < ends_.size());
    const size_t begin = at == 0 ? 0 : ends_[at - 1];
    return std::string_view(texts_).substr(begin, ends_[at] - begin);
  }

 private:
  std::string texts_;
  std::vector<uint32_t> ends_;  // end of each text in texts_
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_TEXT_LIST_H_
