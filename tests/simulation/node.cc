#include "tests/simulation/node.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/support/store_checks.h"

namespace hearth {
namespace {

uint64_t FolderBytes(const std::string& path) {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  return bytes;
}

}  // namespace

const std::vector<std::string>& Node::Tenants() {
  static const auto* const tenants = new std::vector<std::string>{"anna", "berta", "carl"};
  return *tenants;
}

Node::Node(Timeline* time, const KvLayout& layout)
    : time_(time), dice_(time->DiceOf("node")), ledger_(time, layout, &options_.quotas) {
  ChooseOptions();
}

void Node::ChooseOptions() {
  const std::string secret = secrets_.Write("secret", std::string(64, 'a'));
  ::chmod(secret.c_str(), 0600);
  options_.secret_file = secret;
  options_.data_dir = folder_.path();
  const uint64_t ram[] = {0, 20000, 100000, 400000};
  options_.host_bytes = ram[dice_.Roll(4)];
  // the limit on restore point records does not matter, because KV is only a few KiB
  options_.count_points = false;
  is_roomy_ = dice_.Chance(60);
  options_.disk_bytes = is_roomy_ ? uint64_t{64} << 20 : 150000 + dice_.Roll(400000);
  options_.max_staged_bytes = dice_.Chance(30) ? 100000 : 4 << 20;
  // the result is unused; the draw keeps the random sequence, so that old seeds give the same
  // worlds
  dice_.Chance(50);
  dice_.Chance(25);
  if (dice_.Chance(40)) options_.quotas.by_tenant["berta"].max_bytes = 120000;
  if (dice_.Chance(30)) options_.quotas.by_tenant["carl"].default_ttl_s = 60;
  if (dice_.Chance(20)) options_.quotas.by_tenant["anna"].floor_bytes = 60000;
  // The objects of a simulation are smaller than the usual minimum size of a table, so lower that
  // limit.
  const uint64_t least[] = {min_table_bytes_, 1, 8192, 20000};
  min_table_bytes_ = least[dice_.Roll(4)];
  const uint64_t on_device[] = {0, 0, 30000, 200000};
  if (options_.host_bytes > 0) device_bytes_ = on_device[dice_.Roll(4)];
  time_->Note(absl::StrCat("a node with ", device_bytes_, " bytes of a device, ",
                           options_.host_bytes, " of RAM, ", options_.disk_bytes,
                           " of disk, tables from ", min_table_bytes_, ", ",
                           options_.max_staged_bytes, " staged"));
  options_.on_warning = [warnings = warnings_](const std::string&) { ++*warnings; };
}

void Node::Open() {
  struck_at_opening_ = disk_.struck();
  warnings_at_opening_ = *warnings_;
  StoreSeams seams;
  auto jobs = std::make_unique<Jobs>();
  jobs_ = jobs.get();
  seams.clock = time_->store_clock();
  seams.executor = std::move(jobs);
  seams.disk.env = disk_.env();
  seams.disk.boot = boot_;
  seams.disk.pause = absl::ZeroDuration();
  seams.disk.wait = [](absl::Duration) {};
  seams.min_table_bytes = min_table_bytes_;
  if (device_bytes_ > 0) options_.device = device_ = std::make_shared<FakeDevice>(device_bytes_);
  const int struck = disk_.struck();
  auto opened = OpenStore(options_, std::move(seams));
  if (!opened.ok()) {
    // The service manager will start the store again.
    time_->Note("the store does not start");
    time_->LogOnly(opened.status().ToString());
    // A full disk alone must not prevent a start. But if the disk was also damaged, there may be no
    // space for the repair.
    const bool is_only_full = absl::IsResourceExhausted(opened.status()) && !is_damaged_;
    if (disk_.struck() == struck || is_only_full) {
      time_->Violated(29, absl::StrCat("the store does not start: ", opened.status().ToString()));
    }
    return time_->After(absl::Seconds(1), [this] {
      if (!is_up()) Open();
    });
  }
  store_ = *std::move(opened);
  events_seen_.clear();
  CheckStart();
}

// Checks invariant 32: without damage, a started store reports no loss. It must not mistake for
// damage the end of a log that a machine crash removed, or entries that were refused, dropped or
// expired.
void Node::CheckStart() {
  const StoreStats stats = store_->Stats();
  for (const char* name : {"recovery_lost_restore_points", "recovery_damage"}) {
    const uint64_t counted = stats.counters.at(name);
    if (counted > 0 && !is_damaged_) time_->Violated(32, absl::StrCat(name, ": ", counted));
  }
  const std::vector<RestorePoint> listed = List();
  time_->Note(absl::StrCat("the store is up: ", listed.size(), " restore points"));
  TakeEvents();
  ledger_.BeginPins(listed);
  const std::vector<std::string> missing = ledger_.Missing(listed);
  if (is_damaged_ && !missing.empty() && !ReportedDamage()) {
    time_->Violated(28, absl::StrCat("lost by damage, without a word: ", missing[0]));
  }
  ledger_.Reopened(listed, is_damaged_);
}

// Reads the store's events. The store delivers events on its own thread, so each call here resumes
// a subscription after the last event that was read.
void Node::TakeEvents() {
  for (const std::string& tenant : Tenants()) {
    WatchFrom from;
    from.incarnation = store()->Stats().incarnation;
    from.sequence = events_seen_[tenant];
    from.snapshot = false;
    const WatchStart start = store()->Subscribe(tenant, from, [](const StoreEvent&) {});
    if (!start.resumed) time_->LogOnly(absl::StrCat("events of ", tenant, " were lost"));
    events_seen_[tenant] = start.sequence;
    const bool may_evict = !is_roomy_ || options_.quotas.Of(tenant).has_ceiling();
    for (const StoreEvent& event : start.missed) {
      ledger_.OnEvent(event, is_damaged_ || was_struck(), may_evict);
    }
  }
}

void Node::Enter(const std::shared_ptr<ServedCall>& call) {
  served_calls_.erase(std::remove_if(served_calls_.begin(), served_calls_.end(),
                                     [](const auto& other) { return other.expired(); }),
                      served_calls_.end());
  served_calls_.push_back(call);
}

void Node::Drain() {
  time_->Note("the store drains");
  is_draining_ = true;
  // Ending a claim wakes other calls, which then notice that the node is draining.
  for (const auto& call : std::vector<std::weak_ptr<ServedCall>>(served_calls_)) {
    if (const auto held = call.lock()) held->OnNodeDrain();
  }
}

bool Node::is_idle() const {
  return std::none_of(served_calls_.begin(), served_calls_.end(), [](const auto& call) {
    const auto held = call.lock();
    return held != nullptr && held->is_served();
  });
}

void Node::Die(Ledger::Death death) {
  is_draining_ = false;
  const char* const names[] = {"is closed", "is killed", "goes down with its machine"};
  time_->Note(absl::StrCat("the store ", names[static_cast<int>(death)]));
  if (death == Ledger::Death::kClose) {
    for (const auto& call : served_calls_) {
      if (const auto held = call.lock()) held->StopServing();
    }
    RunJobs();
  }
  TakeEvents();
  const std::vector<RestorePoint> listed = List();
  TakeEvents();
  ledger_.CheckPins(listed);
  if (death != Ledger::Death::kClose) disk_.Die();
  for (const auto& call : served_calls_) {
    if (const auto held = call.lock()) held->StopServing();
  }
  served_calls_.clear();
  const int struck = disk_.struck();
  // If damage has closed the database, it refuses deletions, so the next start finds deleted
  // entries again.
  const bool is_failing = is_damaged_ && store_->Stats().Of(Counter::kTierErrors) > 0;
  store_.reset();
  const bool is_clean = !is_failing && struck == struck_at_opening_ && disk_.struck() == struck;
  ledger_.Died(death, is_clean, listed);
  uint64_t room = disk_.room();
  const uint64_t bytes = FolderBytes(folder_.path());
  disk_.Restart(death == Ledger::Death::kMachine, dice_.engine());
  if (death == Ledger::Death::kMachine) ++boot_;
  // A crash may remove bytes from files. These bytes are free space again.
  if (room != FaultyDisk::kAmple) room += bytes - std::min(bytes, FolderBytes(folder_.path()));
  disk_.SetRoom(room);
}

void Node::RunJob() { jobs_->RunOne(); }
void Node::RunJobs() { jobs_->WaitIdle(absl::InfiniteFuture()); }

void Node::Scrub(int steps) {
  for (int i = 0; i < steps; ++i) store()->ScrubStep();
}

// Returns whether the store has reported a loss, in a warning or a counter.
bool Node::ReportedDamage() { return *warnings_ - warnings_at_opening_ + CountedDamage() > 0; }

uint64_t Node::CountedDamage() {
  uint64_t counted = 0;
  const StoreStats stats = store_->Stats();
  for (const char* name : {"recovery_damage", "recovery_dropped_manifests",
                           "recovery_unread_manifests", "quarantined_objects"}) {
    counted += stats.counters.at(name);
  }
  return counted;
}

std::vector<RestorePoint> Node::List() {
  std::vector<RestorePoint> all;
  for (const std::string& tenant : Tenants()) {
    for (RestorePoint& point : store_->List(tenant)) {
      if (point.tenant != tenant) time_->Violated(12, "a list shows another tenant's");
      all.push_back(std::move(point));
    }
  }
  return all;
}

// Checks invariant 16: for every waiting call, another call has promised to compute the boundary
// that it waits for.
void Node::CheckWaits() {
  std::set<std::string> promised;
  std::vector<ServedCall::Turn> waits;
  const absl::Time now = time_->store_clock()->Now();
  for (const auto& call : served_calls_) {
    const auto held = call.lock();
    if (held == nullptr) continue;
    ServedCall::Turn turn = held->turn();
    if (turn.role == ClaimRole::kWait) waits.push_back(std::move(turn));
    if (turn.role == ClaimRole::kCompute)
      promised.insert(turn.promised.begin(), turn.promised.end());
  }
  for (const ServedCall::Turn& wait : waits) {
    if (promised.count(wait.waited_for) > 0 || wait.until <= now) continue;
    time_->Violated(16, absl::StrCat("waits for nobody: ", wait.waited_for));
  }
}

void Node::Check() {
  if (!is_up()) return;
  TakeEvents();
  CheckWaits();
  CheckInvariants(store());
  const StoreStats stats = store_->Stats();
  for (const TierUsage& tier : stats.tiers) {
    if (tier.bytes <= tier.capacity_bytes) continue;
    time_->Violated(4, absl::StrCat(TierName(tier.tier), ": ", tier.bytes, " of ",
                                    tier.capacity_bytes, " bytes"));
  }
  if (stats.most_staged_bytes > options_.max_staged_bytes) {
    time_->Violated(30, absl::StrCat(stats.most_staged_bytes, " bytes were staged of ",
                                     options_.max_staged_bytes));
  }
  for (const std::string& tenant : Tenants()) {
    const TenantFigures figures = store_->StatsOf(tenant);
    if (figures.quota.max_bytes > 0 && figures.usage.bytes > figures.quota.max_bytes) {
      time_->Violated(30, absl::StrCat(tenant, " holds ", figures.usage.bytes, " bytes of ",
                                       figures.quota.max_bytes));
    }
  }
}

}  // namespace hearth
