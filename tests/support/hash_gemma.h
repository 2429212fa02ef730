// Settings of the hashing replacement for the forward pass (hash_gemma.cc). They simulate machines
// whose results differ in some bits. Thread safety: set before the affected workers are created.
#ifndef HEARTH_TESTS_SUPPORT_HASH_GEMMA_H_
#define HEARTH_TESTS_SUPPORT_HASH_GEMMA_H_

#include <cstdint>
#include <string>

namespace hearth {

// The steps in which an odd machine computes results that differ from those of normal machines.
enum class OddBits {
  kNowhere,
  kOneRow,      // in steps with one row, as in decoding
  kSlidWindow,  // in steps in which a local layer no longer sees the prompt's first token
  kFarKeys,     // in steps that attend to more than 4,096 earlier keys
};

// Limits the memory for KV caches. A larger cache fails with an error, or with an exception if
// `throws` is true. 0: no limit.
void LimitCacheBytes(uint64_t bytes, bool throws = false);

// During the lifetime of this object, newly loaded models compute the odd bits.
class OddMachine {
 public:
  explicit OddMachine(OddBits bits, std::string cpu_capability = "hash");
  ~OddMachine();
  OddMachine(const OddMachine&) = delete;
  OddMachine& operator=(const OddMachine&) = delete;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_HASH_GEMMA_H_
