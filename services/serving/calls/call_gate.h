// CallGate: counts and times the calls of a server, and refuses new ones when it drains. Knows the
// server's connections, and the bytes that their calls received.
//
// Every RPC enters here first. Once closed, new calls are refused (UNAVAILABLE) while those inside
// finish; WaitIdle says when the last one left.
// Thread safety: all methods from any thread. A Call belongs to one thread at a time.
// Ownership: a CallGate outlives its Calls.
#ifndef HEARTH_SERVICES_SERVING_CALLS_CALL_GATE_H_
#define HEARTH_SERVICES_SERVING_CALLS_CALL_GATE_H_

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

class CallGate {
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
    // It came by the connection that gRPC calls `peer`, with a message of so many bytes.
    // `reads_on`: more messages follow.
    void CameFrom(const std::string& peer, uint64_t bytes, bool reads_on = false);
    // It received one more message.
    void Took(uint64_t bytes);
    // Its caller was authenticated, or need not be.
    void Known();
    CallNote* note() { return &note_; }
    // The RPC goes on, but the rest is not its work: its time ends here.
    void StopClock() { end_ = SteadyClock().Now(); }

   private:
    friend class CallGate;
    Call(CallGate* gate, const char* method);
    CallGate* const gate_;
    const char* const method_;
    const absl::Time start_;
    absl::Time end_ = absl::InfiniteFuture();
    absl::StatusCode code_ = absl::StatusCode::kOk;
    std::shared_ptr<Connection> connection_;  // null: not of TCP
    bool reads_on_ = false;
    CallNote note_;
  };

  explicit CallGate(Recorder recorder = nullptr);
  ~CallGate();
  CallGate(const CallGate&) = delete;
  CallGate& operator=(const CallGate&) = delete;

  // Null once the gate is closed. `method` must be a literal.
  std::unique_ptr<Call> Enter(const char* method);
  // The answer to a refused call.
  static absl::Status ClosedError();

  // Refuses new calls from now on and runs the registered functions, once.
  void Close();
  bool closed() const;
  // Runs `on_close` when the gate closes, at once when it is closed already. Destroying the handle
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
  ConnectionLedger connections_;
  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<std::weak_ptr<Listener>> listeners_ ABSL_GUARDED_BY(mutex_);
};

// Begins a call of either server: enters the gate with its origin and a message of `bytes`, and
// returns the caller, or the error to answer; `*call` is null where the gate is closed. `reads_on`:
// it goes on reading messages, and reports the size of each. `method`: a literal.
absl::StatusOr<Identity> EnterCall(CallGate* gate, Identities* identities, const char* method,
                                   const grpc::ServerContextBase& context, uint64_t bytes,
                                   std::unique_ptr<CallGate::Call>* call, bool reads_on = false);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_CALL_GATE_H_
