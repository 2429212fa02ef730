#include "proto/slice_hasher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "proto/kv_layout.h"

namespace hearth {
namespace {

std::string Bytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  return bytes;
}

TEST(SliceHasherTest, DigestIgnoresSplitIntoParts) {
  SliceHasher hasher;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{300}, 3 * kHashBlockBytes + 17}) {
    const std::string bytes = Bytes(size);
    for (const size_t part : {size_t{7}, size_t{256}, kHashBlockBytes, size + 1}) {
      hasher.Begin();
      for (size_t at = 0; at < size; at += part) {
        hasher.Add(bytes.data() + at, std::min(part, size - at));
      }
      EXPECT_EQ(hasher.bytes(), size);
      EXPECT_EQ(hasher.digest(), SliceDigest(bytes.data(), size)) << size << " by " << part;
    }
  }
}

TEST(SliceHasherTest, AddCopyCopiesAndHashes) {
  SliceHasher hasher;
  const std::string bytes = Bytes(2 * kHashBlockBytes + 100);
  std::string copy(bytes.size(), 'x');
  hasher.AddCopy(copy.data(), bytes.data(), 50);
  hasher.AddCopy(copy.data() + 50, bytes.data() + 50, bytes.size() - 50);
  EXPECT_EQ(copy, bytes);
  EXPECT_EQ(hasher.digest(), SliceDigest(bytes.data(), bytes.size()));
}

}  // namespace
}  // namespace hearth
