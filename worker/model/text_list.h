// TextList: a list of many short strings in one buffer.
//
// Each string takes its bytes plus 4 bytes. A std::string would take 32 bytes, plus an allocation
// if it is longer than 15 bytes.
// Thread safety: like std::vector. Invariant: the strings together have less than 4 GiB.
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
  // Adds a string of `bytes` bytes and returns its address. The caller writes the bytes before the
  // next call.
  char* Add(size_t bytes) {
    const size_t begin = texts_.size();
    assert(bytes <= UINT32_MAX - begin);
    texts_.resize(begin + bytes);
    ends_.push_back(static_cast<uint32_t>(texts_.size()));
    return texts_.data() + begin;
  }
  void Add(std::string_view text) { text.copy(Add(text.size()), text.size()); }

  size_t size() const { return ends_.size(); }
  // The result is valid until the next Add. REQUIRES: at < size().
  std::string_view operator[](size_t at) const {
    assert(at < ends_.size());
    const size_t begin = at == 0 ? 0 : ends_[at - 1];
    return std::string_view(texts_).substr(begin, ends_[at] - begin);
  }

 private:
  std::string texts_;
  std::vector<uint32_t> ends_;  // offset in texts_ of the end of each string
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_TEXT_LIST_H_
