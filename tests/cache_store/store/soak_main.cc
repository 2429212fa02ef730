// Mixed operations on one store from several threads, for any length of time: to run under
// sanitizers, and to check that the resident memory stays constant after the store is full.
//
// Each fetched byte is compared with the byte that a model would have computed (store_kit.h). The
// store is much smaller than its prompts, so it always evicts, demotes, writes in the background
// and scrubs. Exits with 0 if there was no error and the memory stayed constant.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache_store/store/store_seams.h"
#include "tests/support/store_checks.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

struct Options {
  uint64_t operations = 100'000;
  uint64_t seed = 1;
  int threads = 4;
  bool ram_only = false;
};

constexpr std::array<const char*, 2> kTenants = {"default", "other"};
constexpr uint64_t kFamilies = 4000;
constexpr uint32_t kShared = 64;  // number of tokens that a group of prompts has in common

StoreOptions SmallStore(const std::string& folder, bool ram_only) {
  StoreOptions options;
  if (!ram_only) options.data_dir = folder;
  options.host_bytes = 4 << 20;
  options.disk_bytes = 12 << 20;
  options.max_background_bytes = 256 << 10;
  options.scrub.bytes_per_s = 8 << 20;
  options.scrub.period = absl::Milliseconds(100);
  options.shared_memory = true;
  options.quotas.by_tenant["other"].max_bytes = 2 << 20;
  options.quotas.by_tenant["default"].floor_bytes = 1 << 20;
  return options;
}

double ResidentMiB() {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  return static_cast<double>(resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE))) / (1 << 20);
}

// Numbers of operations and errors, over all threads.
struct Tally {
  std::atomic<uint64_t> done{0}, fetched{0}, hits{0}, published{0}, refused{0};
  std::atomic<bool> failed{false};

  void Fail(const std::string& what) {
    if (!failed.exchange(true)) std::fprintf(stderr, "wrong: %s\n", what.c_str());
  }
  // Accepts refused calls, which are expected under this load; other errors fail the run.
  void Note(const absl::Status& status, const char* call) {
    if (status.ok()) return;
    ++refused;
    switch (status.code()) {
      case absl::StatusCode::kResourceExhausted:
      case absl::StatusCode::kNotFound:
      case absl::StatusCode::kFailedPrecondition:
      case absl::StatusCode::kAborted:
      case absl::StatusCode::kDeadlineExceeded:
        return;
      default:
        Fail(absl::StrCat(call, ": ", status.ToString()));
    }
  }
};

class Caller {
 public:
  Caller(TieredStore* store, const Options& options, int index, Tally* tally)
      : store_(store), tally_(*tally), random_(options.seed * 1000 + static_cast<uint64_t>(index)) {
    store_->Observe(model_, kTenants[0]);
    store_->Observe(model_, kTenants[1]);
  }

  void Run(uint64_t operations) {
    for (uint64_t i = 0; i < operations && !tally_.failed; ++i) {
      Step();
      ++tally_.done;
    }
  }

 private:
  struct Held {
    std::unique_ptr<FetchSession> session;
    KitPrompt prompt;
  };

  uint64_t Below(uint64_t bound) { return random_() % bound; }

  // Returns a random prompt: group number n is drawn with probability proportional to 1/n, roughly
  // like real prompts.
  KitPrompt AnyPrompt() {
    const double unit = static_cast<double>(random_() >> 11) * 0x1p-53;
    const auto family = static_cast<uint64_t>(std::exp(unit * std::log(kFamilies))) - 1;
    const uint64_t member = Below(4);
    KitPrompt prompt{KitTokens(family, kShared), {}, kTenants[Below(8) == 0 ? 1 : 0]};
    const std::vector<uint32_t> own =
        KitTokens(1'000'000 + family * 4 + member, 33 + static_cast<uint32_t>(member) * 24);
    prompt.tokens.insert(prompt.tokens.end(), own.begin(), own.end());
    if (member == 3) prompt.cuts = {kShared + 5};
    return prompt;
  }

  std::vector<uint32_t> Boundaries(const KitPrompt& prompt) {
    std::vector<uint32_t> boundaries = {kShared};
    boundaries.insert(boundaries.end(), prompt.cuts.begin(), prompt.cuts.end());
    boundaries.push_back((static_cast<uint32_t>(prompt.tokens.size()) - 1) / 16 * 16);
    return boundaries;
  }

  void Step() {
    const uint64_t draw = Below(10'000);
    if (draw < 6'000) return Fetch();
    if (draw < 7'000) return FetchAndHold();
    if (draw < 9'300) return Publish(Durability::kMemory);
    if (draw < 9'310) return Publish(Durability::kDisk);
    if (draw < 9'312) return Publish(Durability::kSync);
    if (draw < 9'400) return Abandon();
    if (draw < 9'600) return Explain();
    if (draw < 9'700) return Lease();
    if (draw < 9'800) return Pin();
    if (draw < 9'850) return Drop();
    if (draw < 9'900) return Watch();
    if (draw < 9'999) return Figures();
    if (Below(10) == 0) tally_.Note(store_->Flush(absl::Now() + absl::Seconds(1)), "flush");
  }

  void Fetch() {
    const KitPrompt prompt = AnyPrompt();
    const absl::StatusOr<uint32_t> usable = KitFetch(store_, model_, prompt);
    tally_.Note(usable.status(), "fetch");
    ++tally_.fetched;
    if (usable.ok() && *usable > 0) ++tally_.hits;
  }

  // Opens a session and reads it later, when its objects may have been evicted, dropped or written
  // again.
  void FetchAndHold() {
    Held& held = held_[Below(held_.size())];
    if (held.session != nullptr && held.session->plan().usable_tokens > 0) {
      tally_.Note(KitReadAll(held.session.get(), model_, held.prompt), "held fetch");
    }
    held.prompt = AnyPrompt();
    auto session = store_->Fetch(KitQuery(model_, held.prompt), 0, 0);
    tally_.Note(session.status(), "fetch");
    held.session = session.ok() ? *std::move(session) : nullptr;
  }

  void Publish(Durability level) {
    const KitPrompt prompt = AnyPrompt();
    const auto result = KitPublish(store_, model_, prompt, Boundaries(prompt), level);
    tally_.Note(result.status(), "publish");
    if (result.ok()) ++tally_.published;
  }

  void Abandon() {
    const KitPrompt prompt = AnyPrompt();
    const PublishSpec spec = KitSpec(model_, prompt, Boundaries(prompt), Durability::kMemory);
    auto session = store_->Publish(spec);
    tally_.Note(session.status(), "publish");
    if (session.ok()) tally_.Note(KitPutAll(session->get(), spec, model_, prompt), "put");
  }

  void Explain() {
    tally_.Note(store_->Explain(KitQuery(model_, AnyPrompt())).status(), "explain");
  }

  void Lease() {
    ClaimRequest ask;
    ask.compute_time = absl::Milliseconds(Below(20));
    ask.wait_until = absl::Now() + absl::Milliseconds(Below(20));
    ask.wake = [this] { ++woken_; };
    const KitPrompt prompt = AnyPrompt();
    auto turn = store_->Claim(KitQuery(model_, prompt), ask);
    tally_.Note(turn.status(), "lease");
    std::shared_ptr<void>& ticket = tickets_[Below(tickets_.size())];
    ticket = turn.ok() ? std::move(turn->ticket) : nullptr;
  }

  const RestorePoint* AnyPoint() {
    if (points_.empty()) points_ = store_->Hottest(64);
    return points_.empty() ? nullptr : &points_[Below(points_.size())];
  }
  void Pin() {
    if (Below(20) == 0) points_.clear();
    const RestorePoint* point = AnyPoint();
    if (point == nullptr) return;
    tally_.Note(store_->SetPinned(point->id, point->tenant, Below(3) == 0).status(), "pin");
  }
  void Drop() {
    const RestorePoint* point = AnyPoint();
    if (point == nullptr) return;
    tally_.Note(store_->Drop(point->id, point->tenant, Below(2) == 0).status(), "drop");
    points_.clear();
  }

  void Watch() {
    watch_.subscription.reset();
    WatchFrom from;
    from.snapshot = Below(4) == 0;
    watch_ = store_->Subscribe(kTenants[Below(2)], from, [this](const StoreEvent&) { ++woken_; });
    watch_.snapshot.clear();
  }

  void Figures() {
    if (Below(100) == 0) {
      store_->List(kTenants[Below(2)]);
    } else if (Below(2) == 0) {
      store_->Stats();
    } else {
      store_->StatsOf(kTenants[Below(2)]);
    }
  }

  TieredStore* const store_;
  Tally& tally_;
  const Fingerprint model_ = KitModel().Make();
  std::mt19937_64 random_;
  std::atomic<uint64_t> woken_{0};
  std::vector<RestorePoint> points_;
  std::array<Held, 4> held_;
  std::array<std::shared_ptr<void>, 4> tickets_;
  WatchStart watch_;
};

constexpr int kRounds = 20;
// Compares the maximum resident memory of the last rounds with the maximum of earlier rounds in
// which the store was full.
constexpr int kWarmRounds = 8, kLastRounds = 6;
constexpr double kFlat = 1.05;
constexpr uint64_t kEnoughToJudge = 1'000'000;  // number of operations

int Main(const Options& options) {
  const TestFolder folder;
  auto store = TieredStore::Open(SmallStore(folder.path(), options.ram_only)).value();
  Tally tally;
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < options.threads; ++i) {
    callers.push_back(std::make_unique<Caller>(store.get(), options, i, &tally));
  }
  const uint64_t each = options.operations / static_cast<uint64_t>(kRounds * options.threads) + 1;
  std::vector<double> resident;
  std::printf("operations  per second  hit rate  published  refused  points   RSS MiB\n");
  for (int round = 0; round < kRounds && !tally.failed; ++round) {
    const absl::Time began = absl::Now();
    std::vector<std::thread> threads;
    for (const auto& caller : callers) threads.emplace_back([&caller, each] { caller->Run(each); });
    for (std::thread& thread : threads) thread.join();
    CheckInvariants(store.get());
    resident.push_back(ResidentMiB());
    const double seconds = absl::ToDoubleSeconds(absl::Now() - began);
    std::printf("%10llu  %10.0f  %8.3f  %9llu  %7llu  %6llu  %8.1f\n",
                static_cast<unsigned long long>(tally.done.load()),
                static_cast<double>(each * callers.size()) / seconds,
                static_cast<double>(tally.hits) / static_cast<double>(tally.fetched),
                static_cast<unsigned long long>(tally.published.load()),
                static_cast<unsigned long long>(tally.refused.load()),
                static_cast<unsigned long long>(store->Stats().restore_points), resident.back());
    std::fflush(stdout);
  }
  if (tally.failed) return 1;
  callers.clear();
  for (const auto& [name, count] : store->Stats().counters) {
    if (count > 0) std::printf("  %s %llu\n", name.c_str(), static_cast<unsigned long long>(count));
  }
  const double warm =
      *std::max_element(resident.begin() + kWarmRounds, resident.end() - kLastRounds);
  const double last = *std::max_element(resident.end() - kLastRounds, resident.end());
  std::printf("resident memory: %.1f MiB once warm, %.1f MiB at the end\n", warm, last);
  if (last <= warm * kFlat || options.operations < kEnoughToJudge) return 0;
  std::fprintf(stderr, "wrong: the resident memory grew\n");
  return 1;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  hearth::Options options;
  const std::vector<std::string> words(argv + 1, argv + argc);
  auto word = words.begin();
  options.ram_only = word != words.end() && *word == "ram";
  if (options.ram_only) ++word;
  bool is_right = true;
  if (word != words.end()) is_right = absl::SimpleAtoi(*word++, &options.operations);
  if (word != words.end()) is_right = absl::SimpleAtoi(*word++, &options.seed) && is_right;
  if (is_right && word == words.end()) return hearth::Main(options);
  std::fprintf(stderr,
               "hearth_soak [ram] [OPERATIONS [SEED]]: mixed operations on one small store: every "
               "byte is checked, the memory must stay flat.\n"
               "ram: without a disk, many more operations a second. OPERATIONS: of all threads "
               "together, 100000. SEED: of the load, 1.\n");
  return 2;
}
