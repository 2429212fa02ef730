// SharedKit: stores without disks that share an engine in memory and a clock. SharedStoreTest: a
// fixture for their tests.
#ifndef HEARTH_TESTS_CACHE_STORE_SHARED_SHARED_KIT_H_
#define HEARTH_TESTS_CACHE_STORE_SHARED_SHARED_KIT_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache_store/base/secret.h"
#include "cache_store/shared/tier/shared_store.h"
#include "cache_store/store/store_seams.h"
#include "proto/restore_rule.h"
#include "tests/support/fake_shared_engine.h"
#include "tests/support/manual_executor.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {

struct SharedNode {
  ManualExecutor* jobs = nullptr;    // background jobs of the local store
  ManualExecutor* writes = nullptr;  // background writes to the engine
  ManualExecutor* waits = nullptr;   // writes to the engine for which callers wait
  FakeSharedEngine* engine = nullptr;
  LocalStore* behind = nullptr;
  std::unique_ptr<SharedStore> store;

  uint64_t Of(Counter counter) { return store->Stats().Of(counter); }
};

struct SharedKit {
  FakeClock clock;
  FakeClock* steady = nullptr;  // steady clock of stores that are created later; null: `clock`
  FakeSharedMemory memory;
  TestFolder folder;
  std::string secret_file = folder.path() + "/secret";
  StoreOptions store_options;
  SharedOptions shared_options;

  SharedKit() { store_options.host_bytes = 8 * kMiB; }

  // Returns the tenant's SharedSpace in the generation that the engine has.
  SharedSpace Space(const std::string& tenant) {
    const std::string secret = ReadSecret(secret_file).value();
    const SharedSpace plain(secret, tenant, 0);
    const std::string name = plain.NumbersName();
    const auto numbers =
        SharedNumbers::Parse(plain.Open(name, memory.entries[name].value).value_or(""));
    EXPECT_TRUE(numbers.has_value());
    return SharedSpace(secret, tenant, numbers->generation, numbers->drop_number);
  }

  SharedNode Node() {
    SharedNode node;
    const std::string secret = ReadOrMakeSecret(secret_file).value();
    store_options.secret_file = secret_file;
    auto behind = OpenStore(store_options, SteppedSeams(&node.jobs, &clock));
    node.behind = behind->get();
    auto engine = std::make_unique<FakeSharedEngine>(&memory, &clock);
    node.engine = engine.get();
    auto writes = std::make_unique<ManualExecutor>();
    node.writes = writes.get();
    auto waits = std::make_unique<ManualExecutor>();
    node.waits = waits.get();
    SharedOptions options = shared_options;
    options.max_loading_bytes = std::min(options.max_loading_bytes, store_options.host_bytes);
    node.store = std::make_unique<SharedStore>(
        *std::move(behind), std::move(engine), secret, options,
        SharedStore::Seams{&clock, steady, std::move(writes), std::move(waits)});
    return node;
  }
};

// The model has chunks of 16 tokens, a window of 24 tokens and layers "llg" (two local, one
// global): 64 tokens are 4 global objects of one slice and 2 local objects of two slices.
class SharedStoreTest : public ::testing::Test {
 protected:
  static KitPrompt Prompt(uint64_t seed, uint32_t tokens = 65) {
    return {KitTokens(seed, tokens), {}};
  }
  // Publishes to the store `node`, and runs its writes to the engine.
  void Publish(SharedNode* node, const KitPrompt& prompt, std::vector<uint32_t> boundaries) {
    const auto result = KitPublish(node->store.get(), model_, prompt, boundaries);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ(result->boundaries, boundaries);
    node->writes->RunAll();
  }
  // Fetches like the first call of a worker, which sends the fields of its fingerprint.
  uint32_t Fetch(SharedNode* node, const KitPrompt& prompt, Tier* tier = nullptr) {
    node->store->Observe(model_, prompt.tenant);
    const auto tokens = KitFetch(node->store.get(), model_, prompt, tier);
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    return tokens.value_or(0);
  }
  std::string Name(const KitPrompt& prompt, const ObjectId& id) {
    const SharedSpace space = kit_.Space(prompt.tenant);
    const uint32_t end = id.begin + id.tokens;
    const PromptChain chain = MakeChain(model_.Layout().value(), space.RootOf(model_.digest()),
                                        prompt.tokens, prompt.cuts, end, {end});
    return space.PartName(chain.EndingAt(end, 16)->key, id.group, 0);
  }
  // Returns whether the engine has all objects that the boundary needs.
  bool IsRestorable(const KitPrompt& prompt, uint32_t boundary) {
    for (const ObjectId& id : NeededObjects(model_.Layout().value(), boundary)) {
      if (kit_.memory.entries.count(Name(prompt, id)) == 0) return false;
    }
    return true;
  }
  size_t Heads() { return kit_.memory.Count(":g:0") + kit_.memory.Count(":l:0"); }

  SharedKit kit_;
  const Fingerprint model_ = KitModel().Make();
};

}  // namespace hearth

#endif  // HEARTH_TESTS_CACHE_STORE_SHARED_SHARED_KIT_H_
