#include "cache_store/base/slice_view.h"

#include <cstring>
#include <new>

namespace hearth {

std::shared_ptr<std::byte> AllocateSlice(size_t bytes) {
  void* memory = ::operator new(bytes == 0 ? 1 : bytes, std::align_val_t(kSliceAlignment));
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), [](std::byte* p) {
    ::operator delete(p, std::align_val_t(kSliceAlignment));
  });
}

SliceView CopySlice(absl::Span<const std::byte> bytes) {
  std::shared_ptr<std::byte> memory = AllocateSlice(bytes.size());
  if (!bytes.empty()) std::memcpy(memory.get(), bytes.data(), bytes.size());
  absl::Span<const std::byte> view(memory.get(), bytes.size());
  return SliceView{std::move(memory), view};
}

}  // namespace hearth
