// Random operations compared with a model that remembers only acknowledged restore points.
// Operations are chosen by a seed.
//
// After every step: no tier exceeds its capacity, and the bookkeeping is consistent. For every
// fetch: the bytes are exact, and the objects have not expired. After reopening, if nothing was
// evicted: every durable restore point that was acknowledged is there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "cache_store/disk/verify.h"
#include "cache_store/store/calls/store.h"
#include "proto/restore_rule.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_device.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_checks.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

struct Setting {
  const char* name;
  uint64_t host_bytes, disk_bytes;
  bool disk;
  uint64_t device_bytes = 0;
  bool count_points = false;
};

class StoreProperty : public ::testing::TestWithParam<std::tuple<Setting, int>> {
 protected:
  const Setting& setting() const { return std::get<0>(GetParam()); }

  void Open() {
    sessions_.clear();
    if (store_ != nullptr) {
      for (const TierUsage& tier : store_->Stats().tiers) left_ += tier.evicted_restore_points;
    }
    store_.reset();
    StoreOptions options;
    if (setting().disk) options.data_dir = folder_.path();
    options.host_bytes = setting().host_bytes;
    options.disk_bytes = setting().disk_bytes;
    options.count_points = setting().count_points;
    if (setting().device_bytes > 0) {
      options.device = device_ = std::make_shared<FakeDevice>(setting().device_bytes);
    }
    StoreSeams seams = SteppedSeams(&executor_, &clock_);
    store_ = OpenStore(options, std::move(seams)).value();
  }

  // Returns a prompt from one of a few groups with common prefixes, with or without prefill cuts.
  KitPrompt RandomPrompt() {
    KitPrompt prompt;
    prompt.tokens = KitTokens(random_() % 4, 20 + random_() % 200);
    if (random_() % 3 == 0) {
      const uint32_t from = static_cast<uint32_t>(random_() % prompt.tokens.size());
      for (size_t i = from; i < prompt.tokens.size(); ++i) prompt.tokens[i] += 60000;
    }
    if (random_() % 3 == 0) prompt.cuts = {10 + static_cast<uint32_t>(random_() % 3) * 23};
    if (!prompt.cuts.empty() && prompt.cuts[0] > prompt.tokens.size()) prompt.cuts.clear();
    if (random_() % 5 == 0) prompt.tenant = "other";
    return prompt;
  }

  std::vector<uint32_t> RandomBoundaries(const KitPrompt& prompt) {
    std::set<uint32_t> kept;
    const uint32_t tokens = static_cast<uint32_t>(prompt.tokens.size());
    for (uint32_t boundary = 16; boundary <= tokens; boundary += 16) {
      if (random_() % 4 == 0) kept.insert(boundary);
    }
    for (const uint32_t cut : prompt.cuts) kept.insert(cut);
    if (kept.empty()) kept.insert(tokens / 16 * 16);
    return {kept.begin(), kept.end()};
  }

  void PublishSomething() {
    const KitPrompt prompt = RandomPrompt();
    const Durability level = random_() % 3 == 0   ? Durability::kMemory
                             : random_() % 8 == 0 ? Durability::kSync
                                                  : Durability::kDisk;
    // Only the tenant "other", which has no pins, uses times to live, because a pin keeps an
    // expired restore point.
    const bool expires = prompt.tenant == "other" && random_() % 2 == 0;
    PublishSpec spec = KitSpec(model_, prompt, RandomBoundaries(prompt), level);
    if (expires) spec.ttl = absl::Seconds(1 + random_() % 60);
    auto session = store_->Publish(spec);
    ASSERT_TRUE(session.ok()) << session.status();
    ASSERT_TRUE(KitPutAll(session->get(), spec, model_, prompt).ok());
    const auto result = (*session)->Commit();
    session->reset();
    if (!result.ok()) {
      ASSERT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted) << result.status();
      return;
    }
    for (const uint32_t boundary : result->boundaries) {
      KitPrompt point = prompt;
      point.tokens.resize(boundary);
      while (!point.cuts.empty() && point.cuts.back() > boundary) point.cuts.pop_back();
      WantUntil(point, expires ? clock_.Now() + spec.ttl : absl::InfiniteFuture());
      if (result->durable != Durability::kMemory && !expires) acked_.push_back(point);
    }
  }

  // Returns a name for an object, made of everything that the object's key covers.
  static std::string NameOf(const KitPrompt& prompt, const ObjectId& id) {
    std::string name = prompt.tenant + (id.group == LayerGroup::kGlobal ? " g" : " l");
    const uint32_t end = id.begin + id.tokens;
    for (uint32_t i = 0; i < end; ++i) name += " " + std::to_string(prompt.tokens[i]);
    for (const uint32_t cut : prompt.cuts) {
      if (cut < end) name += " cut " + std::to_string(cut);
    }
    return name;
  }
  void WantUntil(const KitPrompt& point, absl::Time until) {
    const KvLayout layout = model_.Layout().value();
    for (const ObjectId& id : NeededObjects(layout, static_cast<uint32_t>(point.tokens.size()))) {
      absl::Time& wanted = wanted_until_.try_emplace(NameOf(point, id)).first->second;
      wanted = std::max(wanted, until);
    }
  }
  void CheckWanted(const LookupPlan& plan, const KitPrompt& prompt) {
    if (prompt.tenant != "other") return;
    for (const PlannedObject& object : plan.objects) {
      ASSERT_GT(wanted_until_[NameOf(prompt, object.id)], clock_.Now()) << plan.usable_tokens;
    }
  }

  void FetchSomething() {
    const KitPrompt prompt = RandomPrompt();
    auto session = store_->Fetch(KitQuery(model_, prompt), 0, 0);
    ASSERT_TRUE(session.ok()) << session.status();
    ASSERT_LT((*session)->plan().usable_tokens, prompt.tokens.size());
    ASSERT_GE((*session)->plan().matched_tokens, (*session)->plan().usable_tokens);
    CheckWanted((*session)->plan(), prompt);
    if (random_() % 4 == 0 && sessions_.size() < 3) {
      sessions_.emplace_back(*std::move(session), prompt);
      return;
    }
    const absl::Status read = KitReadAll(session->get(), model_, prompt);
    ASSERT_TRUE(read.ok()) << read;
    LeaseSomething(session->get(), prompt);
  }

  // Leases a copy on the device. Its bytes must be right for as long as the lease is held.
  void LeaseSomething(FetchSession* session, const KitPrompt& prompt) {
    const LookupPlan& plan = session->plan();
    for (size_t i = 0; i < plan.objects.size(); ++i) {
      std::string expected;
      for (const uint32_t layer : plan.layout.LayersOf(plan.objects[i].id.group)) {
        const SliceView slice = KitSlice(model_, prompt, plan.objects[i].id, layer);
        expected.append(reinterpret_cast<const char*>(slice.bytes.data()), slice.bytes.size());
      }
      if (DeviceRef lease = session->OnDevice(i)) {
        leases_.emplace_back(std::move(lease), std::move(expected));
      }
    }
    for (const auto& [lease, expected] : leases_) {
      ASSERT_EQ(lease->range.bytes, expected.size());
      ASSERT_EQ(std::memcmp(lease->bytes, expected.data(), expected.size()), 0);
    }
    while (leases_.size() > 8) leases_.erase(leases_.begin());
  }

  void FinishASession() {
    if (sessions_.empty()) return;
    const absl::Status read =
        KitReadAll(sessions_.back().first.get(), model_, sessions_.back().second);
    ASSERT_TRUE(read.ok()) << read << " (promised, then lost)";
    sessions_.pop_back();
  }

  void PinOrDrop() {
    const std::vector<RestorePoint> all = store_->List("default");
    if (all.empty()) return;
    const RestorePoint& chosen = all[random_() % all.size()];
    if (random_() % 4 != 0) {
      const auto pinned = store_->SetPinned(chosen.id, "default", random_() % 3 == 0);
      ASSERT_TRUE(pinned.ok() || absl::IsResourceExhausted(pinned.status()));
    } else if (drops_) {
      ASSERT_TRUE(store_->Drop(chosen.id, "default", false).ok());
    }
  }

  Store* store() { return static_cast<Store*>(store_.get()); }

  void CheckAcked() {
    for (const KitPrompt& point : acked_) {
      KitPrompt prompt = point;
      prompt.tokens.push_back(1);
      ASSERT_EQ(KitFetch(store_.get(), model_, prompt).value(), point.tokens.size());
    }
  }

  const TestFolder folder_;
  const Fingerprint model_ = KitModel().Make();
  std::mt19937_64 random_{static_cast<uint64_t>(std::get<1>(GetParam()))};
  FakeClock clock_;
  ManualExecutor* executor_ = nullptr;
  std::unique_ptr<TieredStore> store_;
  std::vector<std::pair<std::unique_ptr<FetchSession>, KitPrompt>> sessions_;
  std::vector<KitPrompt> acked_;
  // for each object of the tenant "other": until when a publish wants it
  std::map<std::string, absl::Time> wanted_until_;
  // A run without drops and with enough space must keep all entries.
  const bool drops_ = std::get<1>(GetParam()) % 2 == 1;
  std::shared_ptr<FakeDevice> device_;
  // leases of device copies, and the expected bytes
  std::vector<std::pair<DeviceRef, std::string>> leases_;
  // number of restore points evicted or demoted, over all openings of the store
  uint64_t left_ = 0;
};

TEST_P(StoreProperty, RandomOperationsMatchModel) {
  Open();
  for (int step = 0; step < 200 && !HasFatalFailure(); ++step) {
    clock_.Advance(absl::Seconds(1));
    const uint64_t dice = random_() % 100;
    if (dice < 35) {
      PublishSomething();
    } else if (dice < 70) {
      FetchSomething();
    } else if (dice < 80) {
      FinishASession();
    } else if (dice < 90) {
      if (device_ != nullptr && random_() % 8 == 0) device_->FlipOnce();
      if (device_ != nullptr && random_() % 32 == 0) device_->Lose();
      executor_->RunAll();
      static_cast<Store*>(store_.get())->UpkeepStep();
    } else if (dice < 98) {
      PinOrDrop();
    } else {
      Open();
    }
    CheckInvariants(store());
    for (const TierUsage& tier : store_->Stats().tiers) {
      ASSERT_LE(tier.bytes, tier.capacity_bytes) << TierName(tier.tier) << " step " << step;
    }
  }
  if (HasFatalFailure() || !setting().disk) return;
  const StoreStats stats = store_->Stats();
  EXPECT_EQ(stats.counters.at("quarantined_objects"), 0u);
  EXPECT_EQ(stats.counters.at("nondeterminism"), 0u);
  Open();
  const bool ample = setting().disk_bytes >= 64 << 20;
  if (ample && !drops_) {
    ASSERT_GT(acked_.size(), 20u);
    CheckAcked();
  }
  sessions_.clear();
  store_.reset();
  EXPECT_EQ(left_ == 0, ample) << "the small settings are there to evict";
  const VerifyReport report = VerifyDataDir(folder_.path()).value();
  EXPECT_TRUE(report.ok()) << report.problems[0];
  EXPECT_EQ(report.unreferenced_objects, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Random, StoreProperty,
    ::testing::Combine(::testing::Values(Setting{"RamOnly", 60000, 0, false},
                                         Setting{"SmallRam", 20000, 4 << 20, true},
                                         Setting{"SmallDevice", 20000, 4 << 20, true, 10 * 4096},
                                         Setting{"SmallDisk", 40000, 100000, true},
                                         Setting{"DiskOnly", 0, 150000, true},
                                         Setting{"PointsInRam", 100000, 0, false, 0, true},
                                         Setting{"PointsFillRam", 100000, 4 << 20, true, 0, true},
                                         Setting{"Ample", 8 << 20, 64 << 20, true}),
                       ::testing::Range(1, 5)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + "Seed" +
             std::to_string(std::get<1>(info.param));
    });

}  // namespace
}  // namespace hearth
