// Several threads publish, fetch, pin, drop and watch one small store at the same time. Also run
// under ThreadSanitizer and AddressSanitizer (-DHEARTH_SANITIZE=thread|address).
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "absl/synchronization/notification.h"
#include "cache_store/store/store_seams.h"
#include "tests/support/store_checks.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

constexpr int kThreads = 6;
constexpr int kSteps = 120;

KitPrompt PromptOf(uint64_t seed) {
  KitPrompt prompt{KitTokens(seed % 3, 64), {}};
  for (const uint32_t token : KitTokens(seed, 33)) prompt.tokens.push_back(token);
  return prompt;
}

void Work(TieredStore* store, const Fingerprint& model, uint64_t seed, std::atomic<int>* wrong) {
  std::mt19937_64 random(seed);
  for (int step = 0; step < kSteps; ++step) {
    const KitPrompt prompt = PromptOf(random() % 12);
    const uint64_t dice = random() % 10;
    if (dice < 4) {
      const Durability level = dice == 0 ? Durability::kMemory : Durability::kDisk;
      const auto result = KitPublish(store, model, prompt, {64, 96}, level);
      if (!result.ok() && !absl::IsResourceExhausted(result.status())) ++*wrong;
    } else if (dice < 8) {
      const auto usable = KitFetch(store, model, prompt);
      if (!usable.ok() || (*usable % 16) != 0) ++*wrong;
    } else {
      const std::vector<RestorePoint> all = store->List("default");
      if (all.empty()) continue;
      const Digest id = all[random() % all.size()].id;
      if (dice == 8) {
        store->SetPinned(id, "default", random() % 4 == 0).status().IgnoreError();
      } else {
        store->Drop(id, "default", true).status().IgnoreError();
      }
      store->Explain(KitQuery(model, prompt)).status().IgnoreError();
    }
  }
}

void Hammer(const StoreOptions& options) {
  const auto store = TieredStore::Open(options).value();
  const Fingerprint model = KitModel().Make();
  std::atomic<int> wrong{0};
  std::atomic<uint64_t> events{0}, last_sequence{0};
  std::atomic<bool> ordered{true};
  absl::Notification first;
  WatchStart watch = store->Subscribe("default", {}, [&](const StoreEvent& event) {
    const uint64_t before = last_sequence.exchange(event.sequence);
    const bool lost = event.kind == StoreEvent::Kind::kLost;
    if (lost ? event.sequence <= before : event.sequence != before + 1) ordered = false;
    if (++events == 1) first.Notify();
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] { Work(store.get(), model, static_cast<uint64_t>(t), &wrong); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(store->Flush(absl::InfiniteFuture()).ok());
  EXPECT_TRUE(first.WaitForNotificationWithTimeout(absl::Minutes(5)));
  watch.subscription.reset();
  EXPECT_TRUE(ordered);
  CheckInvariants(store.get());
  const StoreStats stats = store->Stats();
  EXPECT_EQ(stats.counters.at("quarantined_objects"), 0u);
  EXPECT_EQ(stats.counters.at("nondeterminism"), 0u);
  EXPECT_EQ(stats.counters.at("tier_errors"), 0u);
}

TEST(StoreConcurrency, ManyThreadsShareRamOnlyStore) {
  StoreOptions options;
  options.host_bytes = 30000;
  options.count_points = false;
  Hammer(options);
}

TEST(StoreConcurrency, ManyThreadsOverflowBothTiers) {
  const TestFolder folder;
  StoreOptions options;
  options.data_dir = folder.path();
  options.host_bytes = 20000;
  options.count_points = false;
  options.disk_bytes = 80000;
  Hammer(options);
}

TEST(StoreConcurrency, ConcurrentPublishersStoreOnce) {
  const TestFolder folder;
  StoreOptions options;
  options.data_dir = folder.path();
  options.host_bytes = 1 << 20;
  options.disk_bytes = 8 << 20;
  const auto store = TieredStore::Open(options).value();
  const Fingerprint model = KitModel().Make();
  const KitPrompt prompt = PromptOf(1);
  const PublishSpec spec = KitSpec(model, prompt, {64, 96});
  // All sessions send all slices before any of them commits.
  std::vector<std::unique_ptr<PublishSession>> sessions;
  for (int t = 0; t < kThreads; ++t) {
    sessions.push_back(store->Publish(spec).value());
    ASSERT_TRUE(KitPutAll(sessions.back().get(), spec, model, prompt).ok());
  }
  std::atomic<int> committed{0};
  std::vector<std::thread> threads;
  for (auto& session : sessions) {
    threads.emplace_back([&] { committed += session->Commit().ok() ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  sessions.clear();
  EXPECT_EQ(committed, kThreads);
  EXPECT_EQ(store->Stats().objects, spec.objects.size());
  EXPECT_EQ(store->Stats().restore_points, 2u);
  EXPECT_EQ(KitFetch(store.get(), model, prompt).value(), 96u);
}

}  // namespace
}  // namespace hearth
