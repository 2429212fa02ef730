#include "services/serving/calls/admission.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/serving/calls/fair_share.h"

namespace hearth {
namespace {

// Period of the checks of paces and identities.
constexpr absl::Duration kCheckPeriod = absl::Milliseconds(250);
// When the server asks a call to end, a message that is being written gets this long.
constexpr absl::Duration kFinalWriteTime = absl::Seconds(1);

}  // namespace

Admission::Call::Call(Admission* admission, const char* method)
    : admission_(admission), method_(method), start_(SteadyClock().Now()) {}

Admission::Call::~Call() {
  if (connection_ != nullptr) connection_->CallEnds(is_upload_);
  if (admission_->recorder_) {
    admission_->recorder_({method_, code_,
                           absl::ToDoubleSeconds(std::min(SteadyClock().Now(), end_time_) - start_),
                           std::move(note_)});
  }
  absl::MutexLock lock(&admission_->mutex_);
  ReleaseAll();
  admission_->calls_.erase(at_);
}

void Admission::Call::AttachConnection(const std::string& peer, uint64_t bytes, bool is_upload) {
  assert(connection_ == nullptr);
  connection_ = admission_->connections_.Find(peer);
  if (connection_ == nullptr) return;
  is_upload_ = is_upload;
  connection_->CallBegins(is_upload);
  connection_->AddConsumed(bytes + admission_->connections_.limits().call_bytes);
}

void Admission::Call::CountMessage(uint64_t bytes) {
  if (connection_ != nullptr) connection_->AddConsumed(bytes);
}

absl::Status Admission::Call::Finish(absl::Status status) {
  code_ = status.code();
  absl::MutexLock lock(&admission_->mutex_);
  ReleaseAll();
  return status;
}

void Admission::Call::ReleaseAll() {
  admission_->mutex_.AssertHeld();
  if (weight_ == 0) return;
  Usage& taken = admission_->kinds_[limit_.kind];
  const auto own = taken.of_tenant.find(tenant_);
  assert(own != taken.of_tenant.end() && own->second >= weight_);
  assert(taken.all >= weight_ && taken.bytes >= bytes_);
  if ((own->second -= weight_) == 0) taken.of_tenant.erase(own);
  taken.all -= std::exchange(weight_, 0);
  taken.bytes -= std::exchange(bytes_, 0);
}

absl::Status Admission::CheckShare(const Limit& limit, const std::string& tenant, int weight) {
  mutex_.AssertHeld();
  if (tenant.empty() || limit.all <= 0) return absl::OkStatus();
  const Usage& taken = kinds_[limit.kind];
  const auto places_of = [&taken](const std::string& name) {
    const auto it = taken.of_tenant.find(name);
    return it == taken.of_tenant.end() ? 0 : it->second;
  };
  const int own = places_of(tenant);
  assert(own + places_of("") <= taken.all);
  if (IsFairShare(own, weight, taken.all - places_of(""), limit.all)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(limit.kind, ": tenant \"", tenant, "\" has ", own,
                   " open streams, which is its share of the limit; try again later"));
}

absl::Status Admission::Call::TakePlace(const Limit& limit, const Identity& caller, int weight) {
  assert(weight >= 1 && weight_ == 0);
  const std::string tenant = caller.sees_all() ? "" : caller.tenant;
  absl::MutexLock lock(&admission_->mutex_);
  Usage& taken = admission_->kinds_[limit.kind];
  if (limit.all > 0 && taken.all + weight > limit.all) {
    return absl::ResourceExhaustedError(absl::StrCat(limit.kind, ": limit of ", limit.all,
                                                     " open streams reached; try again later"));
  }
  absl::Status status = admission_->CheckShare(limit, tenant, weight);
  if (!status.ok()) return status;
  limit_ = limit;
  weight_ = weight;
  is_worker_ = caller.sees_all() && caller.role != Role::kAnonymous;
  tenant_ = tenant;
  taken.of_tenant[tenant] += weight;
  taken.all += weight;
  assert(limit.all <= 0 || taken.all <= limit.all);
  return absl::OkStatus();
}

absl::Status Admission::Call::ChargeTenant(const std::string& tenant) {
  absl::MutexLock lock(&admission_->mutex_);
  if (!is_worker_ || weight_ == 0 || tenant_ == tenant) return absl::OkStatus();
  if (absl::Status status = admission_->CheckShare(limit_, tenant, weight_); !status.ok()) {
    return status;
  }
  auto& of_tenant = admission_->kinds_[limit_.kind].of_tenant;
  const auto before = of_tenant.find(tenant_);
  assert(before != of_tenant.end() && before->second >= weight_);
  if ((before->second -= weight_) == 0) of_tenant.erase(before);
  tenant_ = tenant;
  of_tenant[tenant] += weight_;
  return absl::OkStatus();
}

absl::Status Admission::Call::Reserve(uint64_t bytes, uint64_t most) {
  absl::MutexLock lock(&admission_->mutex_);
  assert(weight_ > 0);
  uint64_t& taken = admission_->kinds_[limit_.kind].bytes;
  assert(taken >= bytes_ && taken <= limit_.bytes);
  const uint64_t others = taken - bytes_;
  most = std::max(most, bytes);
  if (most > limit_.bytes - others) {
    return absl::ResourceExhaustedError(
        absl::StrCat(limit_.kind, ": needs ", most, " bytes; other calls hold ", others,
                     " bytes of the limit, ", limit_.bytes, " (", limit_.bytes_are, ")"));
  }
  assert(others + bytes <= limit_.bytes);
  taken = others + bytes;
  bytes_ = bytes;
  return absl::OkStatus();
}

void Admission::Call::EndBy(EndCall end) {
  assert(end != nullptr);
  absl::call_once(admission_->checking_, [admission = admission_] {
    admission->checker_ = std::make_unique<RepeatingThread>([admission] {
      admission->CheckCalls();
      return kCheckPeriod;
    });
  });
  {
    absl::MutexLock lock(&admission_->mutex_);
    assert(end_ == nullptr);
    since_ = admission_->clock_->Now();
    end_ = end;
    if (!admission_->closed_) return;
  }
  end(EndReason::kDrain, ClosedError());  // Close ran before end_ was set
}

absl::Status Admission::Call::CheckPace(absl::Time now) {
  admission_->mutex_.AssertHeld();
  const bool waits = waits_.load(std::memory_order_relaxed);
  const bool is_final = is_final_write_.load(std::memory_order_relaxed);
  const absl::Duration window =
      is_final ? std::min(admission_->patience_, kFinalWriteTime) : admission_->patience_;
  if (is_slow_ || (waits && now - since_ < window)) return absl::OkStatus();
  const uint64_t before = std::exchange(moved_before_, moved_.load(std::memory_order_relaxed));
  const absl::Duration passed = now - std::exchange(since_, now);
  assert(moved_before_ >= before);
  const uint64_t moved = moved_before_ - before;
  is_slow_ = waits && (is_final || moved < limit_.least_bytes);
  if (!is_slow_) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(limit_.kind.empty() ? method_ : limit_.kind, ": the caller transferred ", moved,
                   " bytes in ", absl::FormatDuration(passed), "; it must transfer at least ",
                   limit_.least_bytes, " in ", absl::FormatDuration(admission_->patience_)));
}

Admission::Admission(Recorder recorder, Identities* identities, Identity default_identity)
    : recorder_(std::move(recorder)),
      identities_(identities),
      default_identity_(std::move(default_identity)) {}

Admission::~Admission() {
  checker_.reset();
  absl::MutexLock lock(&mutex_);
  assert(calls_.empty());
}

std::unique_ptr<Admission::Call> Admission::Enter(const char* method, const std::string& peer,
                                                  uint64_t bytes, bool is_upload) {
  std::unique_ptr<Call> call;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return nullptr;
    call.reset(new Call(this, method));
    call->at_ = calls_.insert(calls_.end(), call.get());
  }
  call->AttachConnection(peer, bytes, is_upload);
  return call;
}

absl::StatusOr<Identity> Admission::Enter(const char* method,
                                          const grpc::ServerContextBase& context, uint64_t bytes,
                                          std::unique_ptr<Call>* call, bool is_upload) {
  Credentials credentials;
  if (asks_identities() != nullptr) credentials = Identities::CredentialsOf(context);
  return Enter(method, std::move(credentials), CallIdsOf(context), call, context.peer(), bytes,
               is_upload);
}

absl::StatusOr<Identity> Admission::Enter(const char* method, Credentials credentials,
                                          const CallIds& ids, std::unique_ptr<Call>* call,
                                          const std::string& peer, uint64_t bytes, bool is_upload) {
  // Read the generation before the credentials are compared, so that a file that is loaded during
  // the comparison is noticed.
  const uint64_t generation = identities_ == nullptr ? 0 : identities_->generation();
  absl::StatusOr<Identity> caller =
      identities_ == nullptr ? default_identity_ : identities_->Identify(credentials);
  *call = Enter(method, peer, bytes, is_upload);
  if (*call == nullptr) return ClosedError();
  (*call)->note_.request_id = ids.request_id;
  (*call)->note_.span = NewSpan(ids.traceparent);
  if (!caller.ok()) return caller;
  if ((*call)->connection_ != nullptr) (*call)->connection_->MarkAuthenticated();
  (*call)->note_.tenant = caller->tenant;
  if (identities_ == nullptr || caller->role == Role::kAnonymous) return caller;
  absl::MutexLock lock(&mutex_);
  (*call)->credentials_ = std::move(credentials);
  (*call)->was_ = *caller;
  (*call)->generation_ = generation;
  return caller;
}

absl::Status Admission::ClosedError() {
  return absl::UnavailableError("the server is shutting down; call another server");
}

void Admission::Close() {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(closed_, true)) return;
  }
  EndAll(EndReason::kDrain);
}

void Admission::EndAll(EndReason reason) {
  std::vector<EndCall> ends;
  {
    absl::MutexLock lock(&mutex_);
    for (const Call* const call : calls_) {
      if (call->end_ != nullptr) ends.push_back(call->end_);
    }
  }
  for (const EndCall& end : ends) end(reason, ClosedError());
}

bool Admission::closed() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

bool Admission::WaitIdle(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return calls_.empty(); };
  return mutex_.AwaitWithDeadline(absl::Condition(&idle), deadline);
}

int Admission::running() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(calls_.size());
}

void Admission::CheckCalls() {
  struct Followed {
    Credentials credentials;
    Identity was;
    EndCall end;
  };
  std::vector<std::pair<EndCall, absl::Status>> slow;
  std::vector<Followed> followed;
  const uint64_t generation = identities_ == nullptr ? 0 : identities_->generation();
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_->Now();
    for (Call* const call : calls_) {
      if (call->end_ == nullptr) continue;
      if (absl::Status why = call->CheckPace(now); !why.ok()) slow.emplace_back(call->end_, why);
      if (!call->credentials_.has_value()) continue;
      if (std::exchange(call->generation_, generation) == generation) continue;
      followed.push_back({*call->credentials_, call->was_, call->end_});
    }
  }
  for (const auto& [end, why] : slow) end(EndReason::kPace, why);
  for (const Followed& call : followed) {
    const absl::Status is = identities_->CheckStillIs(call.credentials, call.was);
    if (!is.ok()) call.end(EndReason::kIdentity, is);
  }
}

}  // namespace hearth
