// Admission: decides which calls a server takes. Asks who calls, counts and times the calls, also
// for the connection that each came by, and refuses new ones when the server drains.
//
// Every RPC enters here first, with the way that its connection came (door/) behind it. Which of
// those inside have a place is said by the limit of their kind (limit.h). Once closed, new calls
// are refused (UNAVAILABLE) while those inside finish; WaitIdle says when the last one left.
// Thread safety: all methods from any thread. A Call belongs to one thread at a time.
// Ownership: an Admission outlives its Calls, and the identities it.
#ifndef HEARTH_SERVICES_SERVING_CALLS_ADMISSION_H_
#define HEARTH_SERVICES_SERVING_CALLS_ADMISSION_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"
#include "services/serving/door/connection_ledger.h"
#include "services/serving/door/identity.h"

namespace hearth {

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

class Admission {
 public:
  // Told of each finished call; called under no lock.
  using Recorder = std::function<void(const CallRecord&)>;

  // One RPC. Its destruction is the RPC's end.
  class Call {
   public:
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    // Notes the outcome for the record, and hands it back for the return statement.
    absl::Status Finish(absl::Status status);
    // It received one more message.
    void Took(uint64_t bytes);
    CallNote* note() { return &note_; }
    // The RPC goes on, but the rest is not its work: its time ends here.
    void StopClock() { end_ = SteadyClock().Now(); }

   private:
    friend class Admission;
    Call(Admission* admission, const char* method);
    void CameFrom(const std::string& peer, uint64_t bytes, bool reads_on);
    Admission* const admission_;
    const char* const method_;
    const absl::Time start_;
    absl::Time end_ = absl::InfiniteFuture();
    absl::StatusCode code_ = absl::StatusCode::kOk;
    std::shared_ptr<Connection> connection_;  // null: not of TCP
    bool reads_on_ = false;
    CallNote note_;
  };

  // `identities` null: every caller is `everybody`.
  explicit Admission(Recorder recorder = nullptr, Identities* identities = nullptr,
                     Identity everybody = {});
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // Begins a call, with a message of `bytes`. Returns the caller, or the error to answer; `*call`
  // is null once this is closed. `reads_on`: it goes on reading messages, and says the size of
  // each. `method` must be a literal.
  absl::StatusOr<Identity> Enter(const char* method, const grpc::ServerContextBase& context,
                                 uint64_t bytes, std::unique_ptr<Call>* call,
                                 bool reads_on = false);
  // The same of a call that came by the connection that gRPC calls `peer`, whoever calls. Null once
  // this is closed.
  std::unique_ptr<Call> Enter(const char* method, const std::string& peer = "", uint64_t bytes = 0,
                              bool reads_on = false);
  // As Identities::Follow; null where nobody is asked for an identity.
  std::shared_ptr<void> Follow(const grpc::ServerContextBase& context, const Identity& was,
                               Identities::EndStream end);
  // The answer to a refused call.
  static absl::Status ClosedError();

  // Refuses new calls from now on and runs the registered functions, once.
  void Close();
  bool closed() const;
  // Runs `on_close` when this closes, at once when it is closed already. Destroying the handle
  // removes the function, and waits for a run in progress.
  std::shared_ptr<void> OnClose(std::function<void()> on_close);
  // True when no call is inside; false when `deadline` came first.
  bool WaitIdle(absl::Time deadline);
  int running() const;

  ConnectionLedger& connections() { return connections_; }

 private:
  struct Listener {
    absl::Mutex mutex;
    std::function<void()> run ABSL_GUARDED_BY(mutex);
  };
  void NoteEnd(const CallRecord& record);

  const Recorder recorder_;
  Identities* const identities_;
  const Identity everybody_;
  ConnectionLedger connections_;
  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<std::weak_ptr<Listener>> listeners_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_ADMISSION_H_
