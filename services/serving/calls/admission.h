// Admission: decides which calls a server takes, and what each may hold: a place of its kind,
// bytes, and the time of a caller that does not keep its pace.
//
// Every RPC enters here first, after its connection was accepted (access/). Tenants have equal
// shares of a kind's places (fair_share.h). A call that has a place keeps it, whichever tenant
// wants one; but a call that waits for its caller keeps a pace: in each window of `patience` it
// must move its kind's least number of bytes, or it is ended. The last call to leave lets a drain
// end.
//
// Thread safety: all methods from any thread, those of a Call too, but one thread at a time takes
// and gives up what it holds. Ownership: an Admission outlives its Calls, and the identities it.
// Invariants: (1) no more places of a kind are taken than its Limit says; (2) a call's end function
// is called under no lock of this class's.
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
#include "services/serving/access/connection_tracker.h"
#include "services/serving/access/identity.h"

namespace hearth {

// The time in which a call that waits for its caller must move its least number of bytes.
inline constexpr absl::Duration kStreamPatience = absl::Seconds(60);

// The most that calls of one kind may have at a time; 0: any number.
struct Limit {
  absl::string_view kind;            // "publish"; a literal
  int all = 0;                       // places
  uint64_t least_bytes = 1;          // that a call moves in each window; 1: a message
  uint64_t bytes = 0;                // that they reserve, all together
  absl::string_view bytes_are = "";  // where that number comes from, for people
};

// The subject of a call, for the log.
struct CallNote {
  std::string request_id;
  std::string tenant;
  uint64_t tokens = 0, hit_tokens = 0;  // of the prompt; restored or stored
  uint64_t generated = 0;               // tokens
  std::string tier;
  // Of a worker: the choice between loading and computing, and the estimates behind it (below 0:
  // unknown). Empty: there was no choice.
  std::string load;
  double load_estimate_ms = -1, compute_estimate_ms = -1, load_ms = 0;
};

struct CallRecord {
  const char* method = "";
  absl::StatusCode code = absl::StatusCode::kOk;
  double seconds = 0;
  CallNote note;
};

// Why a call is asked to end: the server drains, and what lasts by design is to leave; its caller
// is no longer who it was; its caller does not keep the pace.
// kCutOff: the time of a drain is over; gRPC's server ends its own calls then.
enum class EndReason { kDrain, kIdentity, kPace, kCutOff };

class Admission {
 public:
  // Told of each finished call; called under no lock.
  using Recorder = std::function<void(const CallRecord&)>;
  // May be called again, from any thread, and outlives the call.
  using EndCall = std::function<void(EndReason reason, const absl::Status& why)>;

  // One RPC. Its destruction is the RPC's end.
  class Call {
   public:
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // Gives up the place and the bytes, notes the outcome for the record, and hands it back for the
    // return statement.
    absl::Status Finish(absl::Status status);
    // It received one more message.
    void CountMessage(uint64_t bytes);
    CallNote* note() { return &note_; }
    // The RPC goes on, but the rest is not its work: its time ends here.
    void StopClock() { end_time_ = SteadyClock().Now(); }

    // Takes a place, or `weight` places. kResourceExhausted names the limit. Workers and
    // administrators, and all callers of a server without identities, have no share of their own.
    absl::Status TakePlace(const Limit& limit, const Identity& caller, int weight = 1);
    // The tenant that a worker names later. kResourceExhausted when that tenant has its share.
    absl::Status ChargeTenant(const std::string& tenant);
    // It has so many bytes of its limit from now on, where there is room for as many and for
    // `most`, which nobody keeps for it. kResourceExhausted changes nothing.
    absl::Status Reserve(uint64_t bytes, uint64_t most = 0);

    // Asks it to end by this function. To be called once, before the two below. It is called also
    // when the caller's credentials are not the same identity's any more: with kUnauthenticated if
    // they belong to no identity, kPermissionDenied if to another one.
    void EndBy(EndCall end);
    // Only while it waits for the caller does its lack of progress count.
    void SetWaitingForCaller(bool waits) { waits_.store(waits, std::memory_order_relaxed); }
    void AddTransferred(uint64_t bytes) { moved_.fetch_add(bytes, std::memory_order_relaxed); }
    // It is over but for a wait for the caller, which is to take a second at most.
    void BeginFinalWrite() { is_final_write_.store(true, std::memory_order_relaxed); }

   private:
    friend class Admission;
    Call(Admission* admission, const char* method);
    void AttachConnection(const std::string& peer, uint64_t bytes, bool is_upload);
    // Under the mutex of the admission, as all fields from `at_` on are.
    absl::Status CheckPace(absl::Time now);
    void ReleaseAll();

    Admission* const admission_;
    const char* const method_;
    const absl::Time start_;
    absl::Time end_time_ = absl::InfiniteFuture();
    absl::StatusCode code_ = absl::StatusCode::kOk;
    std::shared_ptr<Connection> connection_;  // null: not of TCP
    bool is_upload_ = false;
    CallNote note_;
    std::atomic<uint64_t> moved_{0};
    std::atomic<bool> waits_{false}, is_final_write_{false};

    std::list<Call*>::iterator at_;
    EndCall end_;  // null: it cannot be ended
    Limit limit_;
    int weight_ = 0;          // places that it has
    bool is_worker_ = false;  // names others' tenants
    std::string tenant_;      // whose places they are; empty: not known
    uint64_t bytes_ = 0;
    absl::Time since_;                        // when its window began
    uint64_t moved_before_ = 0;               // that
    bool is_slow_ = false;                    // and got an error
    std::optional<Credentials> credentials_;  // of a caller with an identity, `was_`
    Identity was_;
    uint64_t generation_ = 0;  // of the identities when it was last compared with them
  };

  // `identities` null: every caller is `default_identity`.
  explicit Admission(Recorder recorder = nullptr, Identities* identities = nullptr,
                     Identity default_identity = {});
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;
  // The clock of paces, and their window. Before any call.
  void SetClock(Clock* clock) { clock_ = clock; }
  void SetPatience(absl::Duration patience) { patience_ = patience; }

  // Begins a call, with a message of `bytes`. Returns the caller, or the error to answer; `*call`
  // is null once this is closed. `is_upload`: it goes on reading messages, and says the size of
  // each. `method` must be a literal.
  absl::StatusOr<Identity> Enter(const char* method, const grpc::ServerContextBase& context,
                                 uint64_t bytes, std::unique_ptr<Call>* call,
                                 bool is_upload = false);
  // The same of a caller with these credentials. Connections of HTTP, without a `peer`, are counted
  // elsewhere.
  absl::StatusOr<Identity> Enter(const char* method, Credentials credentials,
                                 const std::string& request_id, std::unique_ptr<Call>* call,
                                 const std::string& peer = "", uint64_t bytes = 0,
                                 bool is_upload = false);
  // The same of a call that came by the connection that gRPC calls `peer`, whoever calls. Null once
  // this is closed.
  std::unique_ptr<Call> Enter(const char* method, const std::string& peer = "", uint64_t bytes = 0,
                              bool is_upload = false);
  // The answer to a refused call.
  static absl::Status ClosedError();
  // Refuses new calls from now on, and asks those inside to end that last by design, once.
  void Close();
  // Asks all calls to end: the time of a drain is over.
  void CutOff() { EndAll(EndReason::kCutOff); }
  bool closed() const;
  // True when no call is inside; false when `deadline` came first.
  bool WaitIdle(absl::Time deadline);
  int running() const;
  // Asks calls to end whose callers do not keep their pace, or are no longer who they were. A
  // thread of its own calls it four times a second, once there is a call that can be ended.
  void CheckCalls() ABSL_LOCKS_EXCLUDED(mutex_);
  // Null: callers are not asked who they are.
  Identities* asks_identities() const {
    return identities_ == nullptr || identities_->accepts_anyone() ? nullptr : identities_;
  }
  ConnectionTracker& connections() { return connections_; }

 private:
  struct Usage {
    std::map<std::string, int> of_tenant;  // places; "": not known
    int all = 0;
    uint64_t bytes = 0;
  };
  void EndAll(EndReason reason) ABSL_LOCKS_EXCLUDED(mutex_);
  // kResourceExhausted: the tenant would have more than its share. Places that belong to no known
  // tenant count as free.
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
  std::unique_ptr<RepeatingThread> checker_;  // last: it uses the others
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_ADMISSION_H_
