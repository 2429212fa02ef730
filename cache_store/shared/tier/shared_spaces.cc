#include "cache_store/shared/tier/shared_spaces.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// "9223372036854775807".
constexpr uint64_t kMaxNumberBytes = 19;
constexpr uint64_t kMaxMarkBytes = 2 * kMaxNumberBytes + 1;
// Drops of one tenant by several stores at a time take turns.
constexpr int kMaxTries = 8;

absl::Status NoNumber() {
  return absl::DataLossError("the tenant's generation in the engine is no number");
}

}  // namespace

void SharedSpaces::ForgetSome() {
  using Entry = std::map<std::string, Known>::iterator;
  std::vector<Entry> entries;
  for (auto it = known_.begin(); it != known_.end(); ++it) entries.push_back(it);
  const auto is_before = [](const Entry& a, const Entry& b) {
    const auto used = [](const Known& known) { return std::max(known.read_at, known.due_at); };
    return used(a->second) < used(b->second);
  };
  const auto end = entries.begin() + static_cast<ptrdiff_t>(entries.size() / 4);
  std::nth_element(entries.begin(), end, entries.end(), is_before);
  std::for_each(entries.begin(), end, [this](const Entry& entry) { known_.erase(entry); });
}

SharedSpaces::Known& SharedSpaces::KnownOf(const std::string& tenant) {
  if (known_.size() >= kMaxTenants && known_.count(tenant) == 0) ForgetSome();
  return known_[tenant];
}

SharedSpaces::SpacePtr SharedSpaces::SpaceOf(const std::string& tenant, absl::Time since) {
  absl::MutexLock lock(&mu_);
  const auto it = known_.find(tenant);
  return it == known_.end() || it->second.read_at < since ? nullptr : it->second.space;
}

std::string SharedSpaces::Secret() {
  std::string secret = read_secret_();
  absl::MutexLock lock(&mu_);
  if (secret != secret_) {
    secret_ = secret;
    known_.clear();
    secrets_.erase(std::remove(secrets_.begin(), secrets_.end(), secret), secrets_.end());
    secrets_.push_back(secret);
    if (secrets_.size() > kMaxSecrets) secrets_.erase(secrets_.begin());
  }
  return secret;
}

uint64_t SharedSpaces::LastOf(const std::string& tenant) {
  const SpacePtr last = SpaceOf(tenant, absl::InfinitePast());
  return last == nullptr ? 0 : last->generation();
}

SharedSpaces::Told SharedSpaces::Ask(const SharedSpace& space, absl::Time deadline) {
  const std::string mark = space.DropName();
  std::vector<absl::StatusOr<std::string>> got = engine_->Get(
      {space.GenerationName(), mark}, SharedSpace::kSealBytes + kMaxMarkBytes, deadline);
  Told told;
  uint64_t number = 0;
  told.number_status = got[0].status();
  if (got[0].ok()) {
    const bool is_number = absl::SimpleAtoi(*got[0], &number) && number <= DropMark::kMaxNumber;
    if (is_number) told.number = number;
    if (told.number == 0) told.number_status = NoNumber();
  }
  told.dropped_status = got[1].status();
  if (got[1].ok()) {
    const absl::StatusOr<std::string> text = space.Open(mark, *got[1]);
    if (text.ok()) told.dropped = DropMark::Parse(*text).value_or(DropMark());
  }
  // A mark of somebody else's says as much as none.
  const bool is_ours = told.dropped.number > 0;
  if ((got[1].ok() || absl::IsDataLoss(told.dropped_status)) && !is_ours) {
    told.dropped_status = absl::NotFoundError("no mark of a store's");
  }
  return told;
}

absl::StatusOr<SharedSpaces::SpacePtr> SharedSpaces::Find(const std::string& tenant, bool begins,
                                                          absl::Time deadline) {
  if (SpacePtr fresh = SpaceOf(tenant, steady_->Now() - age_); fresh != nullptr) return fresh;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    const std::string secret = Secret();
    const SharedSpace plain(secret, tenant, 0);
    const Told told = Ask(plain, deadline);
    // Before anybody writes what is here under the new generation.
    const absl::Status done = drops_->Hear(plain.DropName(), tenant, told.dropped);
    if (told.is_mark_read()) NoteTold(tenant);
    if (!done.ok()) return done;
    if (told.is_mark_read()) MarkAgain(plain, told.dropped, deadline);
    const uint64_t last = LastOf(tenant);
    // A drop that was acknowledged set both: one of them is enough to know that there was none.
    const bool is_mark_needed = told.number == 0 || told.number > last;
    const bool is_told = told.number > 0 || told.dropped.number > 0 || last > 0 || told.is_lost();
    if ((is_mark_needed && !told.is_mark_read()) || !is_told) {
      if (SpacePtr believed = SpaceOf(tenant, steady_->Now() - kBelieved)) return believed;
      return told.is_mark_read() ? told.number_status : told.dropped_status;
    }
    if (told.is_lost()) {
      absl::StatusOr<SpacePtr> space = Replace(secret, tenant, told, begins, deadline);
      if (!space.ok() || *space != nullptr) return space;
      continue;
    }
    const uint64_t generation = std::max({told.number, told.dropped.number, last});
    if (told.number > 0 && told.number < generation) {
      const std::string name = plain.GenerationName();
      const std::string known = absl::StrCat(generation);
      engine_->Set({SharedValue{name, known}}, deadline);
    }
    return Adopt(secret, tenant, generation);
  }
  return absl::UnavailableError("the tenant's generation in the engine comes and goes");
}

absl::StatusOr<SharedSpaces::SpacePtr> SharedSpaces::Replace(const std::string& secret,
                                                             const std::string& tenant,
                                                             const Told& told, bool begins,
                                                             absl::Time deadline) {
  const std::string name = SharedSpace(secret, tenant, 0).GenerationName();
  uint64_t number = 0;
  if (const SpacePtr believed = SpaceOf(tenant, steady_->Now() - kBelieved); believed != nullptr) {
    number = std::max(believed->generation(), told.dropped.number);
  } else if (begins) {
    // Not one from before: there may have been drops that neither this store nor the engine knows.
    number = NumberAfter(std::max(LastOf(tenant), told.dropped.number));
  } else {
    return absl::NotFoundError("the engine has nothing of the tenant");
  }
  const std::string text = absl::StrCat(number);
  const bool is_absent = absl::IsNotFound(told.number_status);
  const auto set =
      engine_->Set({SharedValue{name, text, absl::InfiniteDuration(), is_absent}}, deadline);
  if (!set[0].ok()) return set[0].status();
  return *set[0] ? Adopt(secret, tenant, number) : SpacePtr();
}

uint64_t SharedSpaces::NumberAfter(uint64_t generation) const {
  const int64_t now = std::max<int64_t>(0, absl::ToUnixMicros(clock_->Now()));
  return std::max(static_cast<uint64_t>(now), generation + 1);
}

bool SharedSpaces::DropsIfOld(const std::string& tenant, const SharedSpace& space) {
  uint64_t last = drops_->HeardOf(space.DropName(), tenant);
  {
    absl::MutexLock lock(&mu_);
    const auto it = known_.find(tenant);
    const bool is_known = it != known_.end() && it->second.space != nullptr;
    if (is_known && space.secret() == secret_)
      last = std::max(last, it->second.space->generation());
  }
  if (last <= space.generation()) return false;
  drops_->DropAgain(tenant).IgnoreError();
  return true;
}

void SharedSpaces::MarkAgain(const SharedSpace& space, DropMark dropped, absl::Time deadline) {
  const std::string mark = space.DropName();
  const DropMark done = drops_->DoneOf(mark);
  if (!dropped.Lacks(done)) return;
  dropped.Join(done);
  const std::string sealed = space.Seal(mark, dropped.Text());
  engine_->Set({SharedValue{mark, sealed}}, deadline);
}

void SharedSpaces::NoteTold(const std::string& tenant) {
  absl::MutexLock lock(&mu_);
  KnownOf(tenant).was_told = true;
}

void SharedSpaces::HearFirst(const std::string& tenant, absl::Time deadline) {
  const absl::Time now = steady_->Now();
  {
    absl::MutexLock lock(&mu_);
    Known& known = KnownOf(tenant);
    if (known.was_told) return;
    known.due_at = now;  // for who would ask behind an answer; who has none yet asks, too
  }
  Of(tenant, deadline).status().IgnoreError();
}

bool SharedSpaces::IsDue(const std::string& tenant) {
  const absl::Time now = steady_->Now();
  absl::MutexLock lock(&mu_);
  Known& known = KnownOf(tenant);
  if (std::max(known.read_at, known.due_at) > now - age_) return false;
  known.due_at = now;
  return true;
}

void SharedSpaces::SetDue(const std::string& tenant) {
  absl::MutexLock lock(&mu_);
  KnownOf(tenant).due_at = absl::InfinitePast();
}

SharedSpaces::SpacePtr SharedSpaces::Adopt(const std::string& secret, const std::string& tenant,
                                           uint64_t generation) {
  absl::MutexLock lock(&mu_);
  // Of use for who asked, and for nobody after that.
  if (secret != secret_) return std::make_shared<const SharedSpace>(secret, tenant, generation);
  Known& known = KnownOf(tenant);
  known.read_at = steady_->Now();
  if (known.space == nullptr || known.space->generation() < generation) {
    known.space = std::make_shared<const SharedSpace>(secret, tenant, generation);
  }
  return known.space;
}

std::vector<std::string> SharedSpaces::Secrets() {
  Secret();  // as it is now is among them
  absl::MutexLock lock(&mu_);
  return secrets_;
}

absl::StatusOr<std::vector<SharedSpaces::SpacePtr>> SharedSpaces::OfEachSecret(
    const std::string& tenant, absl::Time deadline) {
  std::vector<SpacePtr> spaces;
  const std::vector<std::string> secrets = Secrets();
  const absl::StatusOr<SpacePtr> present = Of(tenant, deadline);
  if (!present.ok() && !absl::IsNotFound(present.status())) return present.status();
  if (present.ok()) spaces.push_back(*present);
  for (const std::string& secret : secrets) {
    if (present.ok() && secret == (*present)->secret()) continue;
    const Told told = Ask(SharedSpace(secret, tenant, 0), deadline);
    if (!told.is_mark_read()) return told.dropped_status;
    if (told.number == 0 && !told.is_lost()) return told.number_status;
    const uint64_t generation = std::max(told.number, told.dropped.number);
    if (generation == 0) continue;
    spaces.push_back(std::make_shared<const SharedSpace>(secret, tenant, generation));
  }
  return spaces;
}

absl::Status SharedSpaces::DropAll(const std::string& tenant, bool force, bool is_done,
                                   absl::Time deadline) {
  absl::Status status;
  for (const std::string& secret : Secrets()) {
    status.Update(DropUnder(secret, tenant, force, is_done, deadline));
  }
  return status;
}

absl::Status SharedSpaces::DropUnder(const std::string& secret, const std::string& tenant,
                                     bool force, bool is_done, absl::Time deadline) {
  const SharedSpace space(secret, tenant, 0);
  const std::string mark = space.DropName(), name = space.GenerationName();
  DropMark ours;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    const Told told = Ask(space, deadline);
    if (!told.is_mark_read()) return told.dropped_status;
    if (ours.number > 0 && !told.dropped.Lacks(ours)) {
      // What is here is dropped by who calls, also what another store's drop is of, but not what is
      // pinned, unless this one is of that, too.
      const DropMark done{told.dropped.number, force ? told.dropped.forced : 0};
      if (is_done) drops_->NoteDone(mark, done);
      // Where that fails, who looks next tries it again.
      if (!drops_->Hear(mark, tenant, told.dropped).ok()) return absl::OkStatus();
      Adopt(secret, tenant, std::max(told.number, told.dropped.number));
      return absl::OkStatus();
    }
    // The first time; and where another store's drop, which knew less, took the place of this one.
    ours.Join(told.dropped);
    ours.Join(drops_->DoneOf(mark));  // the engine may have lost it
    ours.number = NumberAfter(
        std::max({told.number, ours.number, LastOf(tenant), drops_->HeardOf(mark, tenant)}));
    if (force) ours.forced = ours.number;
    const std::string text = absl::StrCat(ours.number), sealed = space.Seal(mark, ours.Text());
    const auto marked = engine_->Set({SharedValue{mark, sealed}}, deadline);
    if (!marked[0].ok()) return marked[0].status();
    const auto set = engine_->Set({SharedValue{name, text}}, deadline);
    if (!set[0].ok()) return set[0].status();
  }
  return absl::UnavailableError("other stores drop all of the tenant at the same time");
}

}  // namespace hearth
