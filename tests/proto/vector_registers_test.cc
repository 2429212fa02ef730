// Tests that hashing clears the upper halves of the CPU's vector registers; otherwise later code
// runs slower.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "proto/kv_layout.h"
#include "proto/slice_hasher.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace hearth {
namespace {

#if defined(__x86_64__)
// Returns whether the CPU can report which registers are in use (XGETBV with ECX = 1).
bool ReportsRegistersInUse() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has_xgetbv = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_OSXSAVE) != 0;
  return has_xgetbv && __get_cpuid_count(0xD, 1, &a, &b, &c, &d) != 0 && (a & 4) != 0;
}

// Returns whether the upper halves of vector registers 0 to 15 are in use, for 256 or 512 bits.
bool UpperHalvesAreInUse() {
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
  return (low & (1u << 2 | 1u << 6)) != 0;
}

TEST(VectorRegisters, HashingClearsUpperRegisterHalves) {
  if (!ReportsRegistersInUse()) GTEST_SKIP() << "this CPU does not say which registers are in use";
  const std::vector<char> bytes(1 << 16, 'x');
  const uint64_t whole = SliceDigest(bytes.data(), bytes.size());
  EXPECT_FALSE(UpperHalvesAreInUse());
  SliceHasher hasher;
  for (size_t at = 0; at < bytes.size(); at += 1000) {
    hasher.Add(bytes.data() + at, std::min<size_t>(1000, bytes.size() - at));
    EXPECT_FALSE(UpperHalvesAreInUse()) << at;
  }
  const uint64_t in_parts = hasher.digest();
  EXPECT_FALSE(UpperHalvesAreInUse());
  EXPECT_EQ(in_parts, whole);
}
#endif

}  // namespace
}  // namespace hearth
