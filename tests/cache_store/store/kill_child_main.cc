// The child process of kill_nine_test: publishes, fetches, evicts, demotes and scrubs until it is
// killed. Prints a line "acked SEED" for each acknowledged publish to the store that has space for
// everything, and "wrong ..." for each error. Arguments: folder, first seed, durability (disk or
// sync).
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "tests/cache_store/store/kill_prompts.h"

namespace hearth {
namespace {

// Writes a line with one call, so that the pipe never has a partial line.
void Say(const std::string& line) {
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) std::_Exit(5);
}

std::unique_ptr<TieredStore> Open(const std::string& folder, bool ample) {
  auto store = TieredStore::Open(KillOptions(folder, ample));
  if (store.ok()) return *std::move(store);
  std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
  std::_Exit(3);
}

void PublishForever(TieredStore* store, uint64_t seed, Durability level, bool says,
                    std::atomic<uint64_t>* last) {
  const Fingerprint model = KillModel();
  for (;; ++seed) {
    const auto result = KitPublish(store, model, KillPrompt(seed), KillBoundaries(seed), level);
    if (!result.ok()) {
      Say("wrong: publish: " + result.status().ToString() + "\n");
      std::_Exit(4);
    }
    if (says) Say("acked " + std::to_string(seed) + "\n");
    last->store(seed);
  }
}

void FetchForever(TieredStore* store, uint64_t first, const std::atomic<uint64_t>* last) {
  const Fingerprint model = KillModel();
  std::mt19937_64 random(first);
  while (true) {
    const uint64_t seed = last->load() - std::min<uint64_t>(last->load(), random() % 40);
    const auto usable = KitFetch(store, model, KillPrompt(seed));
    if (!usable.ok()) Say("wrong: fetch: " + usable.status().ToString() + "\n");
  }
}

int Main(char** argv) {
  const std::string folder = argv[1];
  const uint64_t first = std::strtoull(argv[2], nullptr, 10);
  const Durability level = std::string(argv[3]) == "sync" ? Durability::kSync : Durability::kDisk;
  const auto ample = Open(folder, true), small = Open(folder, false);
  std::atomic<uint64_t> last_ample{first}, last_small{first};
  Say("open\n");
  std::thread evicts([&] { PublishForever(small.get(), first, level, false, &last_small); });
  std::thread reads([&] { FetchForever(ample.get(), first, &last_ample); });
  std::thread reads_small([&] { FetchForever(small.get(), first, &last_small); });
  PublishForever(ample.get(), first, level, true, &last_ample);
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return argc == 4 ? hearth::Main(argv) : 2; }
