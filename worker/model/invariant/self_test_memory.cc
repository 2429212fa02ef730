#include "worker/model/invariant/self_test_memory.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/kernels/targets.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {
namespace {

// Name and revision, as the system tells them of the first one.
std::string CpuName() {
  std::ifstream info("/proc/cpuinfo");
  std::string name;
  for (std::string line; std::getline(info, line) && !line.empty();) {
    for (const char* field : {"vendor_id", "cpu family", "model", "stepping", "microcode"}) {
      if (absl::StartsWith(line, field)) absl::StrAppend(&name, line, "\n");
    }
  }
  return name;
}

std::string ProgramFile() {
  struct stat file = {};
  if (stat("/proc/self/exe", &file) != 0) return "";
  return absl::StrCat(file.st_dev, ".", file.st_ino, ".", file.st_size, ".", file.st_mtim.tv_sec,
                      ".", file.st_mtim.tv_nsec);
}

}  // namespace

SelfTestMemory::SelfTestMemory(const std::string& cache_dir, const Digest& weights, WeightForm form,
                               int64_t chunk, const StepLimits& limits) {
  const std::string program = ProgramFile();
  if (cache_dir.empty() || program.empty()) return;
  const std::string key = DigestHex(Sha256(absl::StrCat(
      "hearth.self_test.v1\n", DigestHex(weights), " ", WeightFormName(form), "\n",
      InvariantGemma::kKernelsVersion, " ", chunk, " ", limits.alone, " ", limits.together, " ",
      limits.decodes, " ", KernelTargetName(ChosenTarget()), "\n", program, "\n", CpuName())));
  file_ = absl::StrCat(cache_dir, "/self-test-", key.substr(0, 32));
}

bool SelfTestMemory::HasPassed() const {
  std::string word;
  return !file_.empty() && std::ifstream(file_) >> word && word == "held";
}

void SelfTestMemory::Remember() const {
  if (file_.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(file_).parent_path(), ignored);
  std::ofstream(file_) << "held\n";
}

}  // namespace hearth
