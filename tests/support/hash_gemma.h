// Settings of the stand-in for the forward pass (hash_gemma.cc): simulate machines that compute
// other bits in some cases. Thread safety: set before creating the affected workers.
#ifndef HEARTH_TESTS_SUPPORT_HASH_GEMMA_H_
#define HEARTH_TESTS_SUPPORT_HASH_GEMMA_H_

#include <cstdint>
#include <string>

namespace hearth {

// The steps in which an odd machine computes other bits.
enum class OddBits {
  kNowhere,
  kOneRow,      // in steps of one row, as in decoding
  kSlidWindow,  // in steps that no longer see the prompt's first token in a local layer
  kFarKeys,     // in steps with more than 4,096 earlier keys
};

// Limits the memory for caches: larger caches fail with an error, or by an exception if `throws`.
// 0: no limit.
void LimitCacheBytes(uint64_t bytes, bool throws = false);

// Makes every model loaded during its scope compute odd bits.
class OddMachine {
 public:
  explicit OddMachine(OddBits bits, std::string cpu_capability = "hash");
  ~OddMachine();
  OddMachine(const OddMachine&) = delete;
  OddMachine& operator=(const OddMachine&) = delete;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_HASH_GEMMA_H_
