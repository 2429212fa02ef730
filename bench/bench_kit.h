// Helpers of the benchmarks over gRPC: a model with slices of 1 MiB, prompts for it, and child
// processes.
//
// Thread safety: none. An error ends the program.
#ifndef HEARTH_BENCH_BENCH_KIT_H_
#define HEARTH_BENCH_BENCH_KIT_H_

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "bench/bare_stream.h"
#include "bench/bench_model.h"
#include "bench/turns.h"
#include "proto/restore_rule.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

inline constexpr uint32_t kTokens = 2048;  // tokens per prompt, which makes 64 slices of 1 MiB
inline constexpr int kLayers = 4;

// Returns a model in which a chunk of tokens has a slice of 1 MiB in each layer.
inline Fingerprint BenchFingerprint(int layers = kLayers) {
  return BenchModel(std::string(layers, 'g'), 4, 256);
}

inline PrefixRequest BenchPrefix(int number, uint32_t tokens = kTokens) {
  PrefixRequest prefix;
  for (uint32_t i = 0; i < tokens; ++i) prefix.token_ids.push_back(1000 * (number + 1) + i);
  prefix.tenant = "default";
  return prefix;
}

inline PublishRequestSpec BenchSpec(const KvLayout& layout, int number, uint32_t tokens = kTokens) {
  PublishRequestSpec spec;
  spec.prefix = BenchPrefix(number, tokens);
  spec.boundaries = {tokens};
  uint64_t state = static_cast<uint64_t>(number);
  for (const ObjectId& id : NeededObjects(layout, tokens)) {
    auto object = std::make_shared<KvObject>();
    object->id = id;
    object->size_bytes = layout.ObjectBytes(id.tokens, id.group);
    object->bytes = AllocateAligned(object->size_bytes);
    for (size_t at = 0; at < object->size_bytes; at += 8) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::memcpy(object->bytes.get() + at, &state, 8);
    }
    const size_t slice_bytes = layout.SliceBytes(id.tokens);
    for (size_t at = 0; at < object->size_bytes; at += slice_bytes) {
      object->slice_digests.push_back(SliceDigest(object->bytes.get() + at, slice_bytes));
    }
    spec.objects.push_back(std::move(object));
  }
  return spec;
}

class Child {
 public:
  explicit Child(const std::vector<std::string>& command) {
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      // The kernel kills the child when its parent exits. Without this, the child would keep the
      // output pipe open.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);
      execvp(argv[0], argv.data());
      _exit(127);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  // Returns whether the child process has ended. Check it while waiting for output of the child.
  bool HasEnded() const { return waitpid(pid_, nullptr, WNOHANG) != 0; }

 private:
  pid_t pid_;
};

// Waits until the process `writer` has written the file. Returns the text of the file.
inline std::string WaitForFile(const std::string& path, const Child& writer) {
  for (;;) {
    std::ifstream in(path);
    std::string text;
    if (in >> text) return text;
    if (writer.HasEnded()) {
      std::fprintf(stderr, "the process that was to write %s ended\n", path.c_str());
      std::exit(1);
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
}

}  // namespace hearth

#endif  // HEARTH_BENCH_BENCH_KIT_H_
