// Settings of the stand-in for the forward pass (hash_gemma.cc), for tests: machines that compute
// other bits somewhere. Thread safety: set before the workers that are to have it.
#ifndef HEARTH_TESTS_SUPPORT_HASH_GEMMA_H_
#define HEARTH_TESTS_SUPPORT_HASH_GEMMA_H_

#include <cstdint>
#include <string>

namespace hearth {

// Where an odd machine's bits differ from others'.
enum class OddBits {
  kNowhere,
  kOneRow,      // in steps of one row, as decoding has them
  kSlidWindow,  // in steps that no longer see the prompt's first token in a local layer
  kFarKeys,     // in steps behind more than 4,096 keys
};

// The memory of a device on which caches of more than `bytes` find no room: an error, or it throws.
// 0: all do.
void LimitCacheBytes(uint64_t bytes, bool throws = false);

// For every model that is loaded from now on, until the scope ends.
class OddMachine {
 public:
  explicit OddMachine(OddBits bits, std::string cpu_capability = "hash");
  ~OddMachine();
  OddMachine(const OddMachine&) = delete;
  OddMachine& operator=(const OddMachine&) = delete;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_HASH_GEMMA_H_
