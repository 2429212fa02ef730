// PeakMemory: measures how much the process's peak memory has grown since construction.
//
// Thread safety: none; measures the whole process.
#ifndef HEARTH_TESTS_WORKER_MODEL_PEAK_MEMORY_H_
#define HEARTH_TESTS_WORKER_MODEL_PEAK_MEMORY_H_

#include <malloc.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "tests/support/sanitized.h"

namespace hearth {

class PeakMemory {
 public:
  PeakMemory() {
    malloc_trim(0);                               // otherwise reused memory would not count
    std::ofstream("/proc/self/clear_refs") << 5;  // resets the peak, if the system permits it
    before_ = PeakBytes();
  }
  uint64_t Grown() const { return kIsSanitized ? 0 : PeakBytes() - before_; }

 private:
  static uint64_t PeakBytes() {
    std::ifstream status("/proc/self/status");
    const std::string name = "VmHWM:";
    for (std::string line; std::getline(status, line);) {
      if (line.rfind(name, 0) == 0) return std::stoull(line.substr(name.size())) << 10;
    }
    return 0;
  }

  uint64_t before_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_WORKER_MODEL_PEAK_MEMORY_H_
