// The child of kill_nine_test: publishes prompts made from a seed until it is killed.
// Prints one line for each acknowledged publish: "acked SEED". Arguments: folder, first seed,
// durability (disk or sync).
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/cache_store/kill_prompts.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  hearth::StoreOptions options;
  options.data_dir = argv[1];
  options.host_bytes = 8 << 20;
  options.disk_bytes = uint64_t{8} << 30;
  const auto level =
      std::string(argv[3]) == "sync" ? hearth::Durability::kSync : hearth::Durability::kDisk;
  auto store = hearth::TieredStore::Open(options);
  if (!store.ok()) {
    std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
    return 3;
  }
  std::printf("open\n");
  std::fflush(stdout);
  for (uint64_t seed = std::strtoull(argv[2], nullptr, 10);; ++seed) {
    const hearth::KitPrompt prompt = hearth::KillPrompt(seed);
    const auto result = hearth::KitPublish(store->get(), hearth::KillModel(), prompt,
                                           hearth::KillBoundaries(), level);
    if (!result.ok()) {
      std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
      return 4;
    }
    std::printf("acked %llu\n", static_cast<unsigned long long>(seed));
    std::fflush(stdout);
  }
}
