// Admission: decides which calls a server accepts, and limits what each call may hold: slots (each
// kind of call has a limit of concurrent calls), bytes, and the time of a slow caller.
//
// Every RPC enters here first, after its connection was accepted (access/). Tenants have equal
// shares of a kind's slots (fair_share.h). A call keeps its slot even if another tenant has none.
// But a call that waits for its caller must keep a pace: in each window of `patience` it must
// transfer its kind's least number of bytes, or the call is ended. A drain ends when no call runs
// any more.
//
// Thread safety: all methods from any thread, also those of a Call; but only one thread at a time
// may take or release what a Call holds. Ownership: an Admission must outlive its Calls, and the
// identities must outlive the Admission.
// Invariants: (1) no more slots of a kind are taken than its Limit has; (2) a call's end function
// is called without any lock of this class.
#ifndef HEARTH_SERVICES_SERVING_CALLS_ADMISSION_H_
#define HEARTH_SERVICES_SERVING_CALLS_ADMISSION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/call_once.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"
#include "cache_store/base/repeating_thread.h"
#include "services/rpc/call_metadata.h"
#include "services/rpc/trace_span.h"
#include "services/serving/access/connection_tracker.h"
#include "services/serving/access/identity.h"

namespace hearth {

// Window in which a call that waits for its caller must transfer its kind's least number of bytes.
inline constexpr absl::Duration kStreamPatience = absl::Seconds(60);

// Limits for all calls of one kind together. 0: no limit.
struct Limit {
  absl::string_view kind;            // name in errors, such as "publish"; must be a literal
  int all = 0;                       // maximum number of concurrent calls (slots)
  uint64_t least_bytes = 1;          // fewest bytes that a waiting call must transfer in a window
  uint64_t bytes = 0;                // maximum number of bytes that the calls reserve together
  absl::string_view bytes_are = "";  // where `bytes` comes from, such as a flag; for errors
};

// Milliseconds of the parts of a call that computes tokens. A call may compute several times, one
// after the other.
struct CallTimes {
  // Before the engine queues the request: admission, the tenant's turn, parsing, tokenizing.
  double prompt = 0;
  double queue = 0;
  // Lookup, transfer and restore, and waiting while another request computes the prefix.
  double fetch = 0;
  double lookup = 0;  // part of `fetch`: until the store has answered what it has
  double prefill = 0, decode = 0;
  double publish = 0;    // waits for the store after a computation, before the next
  double until_now = 0;  // from the call's start to the end of the last computation; 0: none ended
};

// Details of a call, for the log.
struct CallNote {
  std::string request_id;
  TraceSpan span;
  std::string tenant;
  uint64_t tokens = 0, hit_tokens = 0;  // tokens of the prompt; those restored or already stored
  uint64_t generated = 0;               // number of generated tokens
  std::string tier;
  // A worker's choice between loading and computing a prefix, and its estimates (below 0: unknown).
  // `load` is empty if there was no choice.
  std::string load;
  double load_estimate_ms = -1, compute_estimate_ms = -1;
  CallTimes times;
};

struct CallRecord {
  const char* method = "";
  absl::StatusCode code = absl::StatusCode::kOk;
  double seconds = 0;
  CallNote note;
};

// Reason why a call is asked to end. kDrain: the server drains, and calls that last by design must
// end. kIdentity: the caller's identity has changed. kPace: the caller is too slow. kCutOff: the
// drain timeout is over; only HTTP calls use it, because gRPC's server ends its own calls.
enum class EndReason { kDrain, kIdentity, kPace, kCutOff };

class Admission {
 public:
  // Called for each finished call. No lock is held.
  using Recorder = std::function<void(const CallRecord&)>;
  // Asks a call to end. May be called more than once, from any thread, and after the call's end.
  using EndCall = std::function<void(EndReason reason, const absl::Status& why)>;

  // One running RPC. The admission counts the RPC until the Call is destroyed.
  class Call {
   public:
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // Releases the slots and the bytes, stores the outcome for the record, and returns `status` for
    // the return statement.
    absl::Status Finish(absl::Status status);
    // Counts one more received message, which has `bytes` bytes.
    void CountMessage(uint64_t bytes);
    CallNote* note() { return &note_; }
    double seconds() const { return absl::ToDoubleSeconds(SteadyClock().Now() - start_); }
    // Stops measuring the duration of the RPC. The RPC continues, but the server works no more for
    // it.
    void StopClock() { end_time_ = SteadyClock().Now(); }

    // Takes `weight` slots for the caller's tenant. kResourceExhausted names the limit. Workers,
    // administrators, and all callers of a server without identities are not limited to a tenant's
    // share.
    absl::Status TakePlace(const Limit& limit, const Identity& caller, int weight = 1);
    // Counts the slots of a worker's call for `tenant`, when the tenant is known.
    // kResourceExhausted if the tenant would exceed its share.
    absl::Status ChargeTenant(const std::string& tenant);
    // Sets the number of bytes that the call reserves. Fails if there is no room for `most` bytes,
    // but reserves only `bytes`. kResourceExhausted: the reservation has not changed.
    absl::Status Reserve(uint64_t bytes, uint64_t most = 0);

    // Sets the function that asks the call to end. Call once, before SetWaitingForCaller and
    // AddTransferred. The function is also called if the caller's credentials no longer have the
    // same identity: with kUnauthenticated if they have none, kPermissionDenied if they have
    // another identity.
    void EndBy(EndCall end);
    // Sets whether the call waits for its caller. The pace is checked only while it waits.
    void SetWaitingForCaller(bool waits) { waits_.store(waits, std::memory_order_relaxed); }
    void AddTransferred(uint64_t bytes) { moved_.fetch_add(bytes, std::memory_order_relaxed); }
    // Call when only the last write is pending. The caller then has one second to read it.
    void BeginFinalWrite() { is_final_write_.store(true, std::memory_order_relaxed); }

   private:
    friend class Admission;
    Call(Admission* admission, const char* method);
    void AttachConnection(const std::string& peer, uint64_t bytes, bool is_upload);
    // REQUIRES: the admission's mutex is held. The same lock guards all members from `at_` on.
    absl::Status CheckPace(absl::Time now);
    void ReleaseAll();

    Admission* const admission_;
    const char* const method_;
    const absl::Time start_;
    absl::Time end_time_ = absl::InfiniteFuture();
    absl::StatusCode code_ = absl::StatusCode::kOk;
    std::shared_ptr<Connection> connection_;  // null: not a TCP connection
    bool is_upload_ = false;
    CallNote note_;
    std::atomic<uint64_t> moved_{0};
    std::atomic<bool> waits_{false}, is_final_write_{false};

    std::list<Call*>::iterator at_;
    EndCall end_;  // null: the call cannot be ended early
    Limit limit_;
    int weight_ = 0;          // slots (concurrent calls) that this call counts for
    bool is_worker_ = false;  // the caller may name other tenants
    std::string tenant_;      // tenant for which the slots are counted; empty: not known
    uint64_t bytes_ = 0;
    absl::Time since_;           // start of the pace window
    uint64_t moved_before_ = 0;  // moved_ at the start of the pace window
    bool is_slow_ = false;       // the caller was too slow, and the call was asked to end
    // the caller's credentials, which had the identity was_
    std::optional<Credentials> credentials_;
    Identity was_;
    uint64_t generation_ = 0;  // generation of the identities at the last comparison
  };

  // If `identities` is null, every caller is `default_identity`.
  explicit Admission(Recorder recorder = nullptr, Identities* identities = nullptr,
                     Identity default_identity = {});
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;
  // Sets the clock that measures the pace. REQUIRES: no call has entered.
  void SetClock(Clock* clock) { clock_ = clock; }
  void SetPatience(absl::Duration patience) { patience_ = patience; }

  // Begins a call with a first message of `bytes`. Returns the caller, or the error to answer.
  // `*call` is null if the admission is closed. `is_upload`: the call reads more messages, and
  // reports each with CountMessage. `method` must be a literal.
  absl::StatusOr<Identity> Enter(const char* method, const grpc::ServerContextBase& context,
                                 uint64_t bytes, std::unique_ptr<Call>* call,
                                 bool is_upload = false);
  // Begins a call of a caller with these credentials. HTTP calls have no `peer`, because the HTTP
  // server counts its connections itself.
  absl::StatusOr<Identity> Enter(const char* method, Credentials credentials, const CallIds& ids,
                                 std::unique_ptr<Call>* call, const std::string& peer = "",
                                 uint64_t bytes = 0, bool is_upload = false);
  // Begins a call without authentication, on the connection that gRPC names `peer`. Returns null if
  // the admission is closed.
  std::unique_ptr<Call> Enter(const char* method, const std::string& peer = "", uint64_t bytes = 0,
                              bool is_upload = false);
  // Returns the error that refuses a call when the admission is closed.
  static absl::Status ClosedError();
  // Refuses new calls from now on. Asks running calls that last by design to end, once.
  void Close();
  // Asks all calls to end, because the drain timeout is over.
  void CutOff() { EndAll(EndReason::kCutOff); }
  bool closed() const;
  // Waits until no call runs. Returns false if `deadline` passes before.
  bool WaitIdle(absl::Time deadline);
  int running() const;
  // Asks each call to end whose caller is too slow or has lost its identity. When the first call
  // with an end function has begun, a thread calls CheckCalls four times a second.
  void CheckCalls() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the identities that authenticate callers; null if callers are not authenticated.
  Identities* asks_identities() const {
    return identities_ == nullptr || identities_->accepts_anyone() ? nullptr : identities_;
  }
  ConnectionTracker& connections() { return connections_; }

 private:
  struct Usage {
    // Slots (concurrent calls) by tenant; "": tenant not known.
    std::map<std::string, int> of_tenant;
    int all = 0;
    uint64_t bytes = 0;
  };
  void EndAll(EndReason reason) ABSL_LOCKS_EXCLUDED(mutex_);
  // kResourceExhausted if the tenant would exceed its share. Slots of unknown tenants count as
  // free.
  absl::Status CheckShare(const Limit& limit, const std::string& tenant, int weight)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Recorder recorder_;
  Identities* const identities_;
  const Identity default_identity_;
  SteadyClock steady_clock_;
  Clock* clock_ = &steady_clock_;
  absl::Duration patience_ = kStreamPatience;
  ConnectionTracker connections_;
  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<Call*> calls_ ABSL_GUARDED_BY(mutex_);
  std::map<absl::string_view, Usage> kinds_ ABSL_GUARDED_BY(mutex_);
  absl::once_flag checking_;
  std::unique_ptr<RepeatingThread> checker_;  // last member: its thread uses the other members
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_ADMISSION_H_
