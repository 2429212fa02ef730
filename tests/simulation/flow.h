// Flow: one call of a worker to its cache over the network, with the messages and deadlines of both
// ends.
//
// The worker's end behaves like RemotePrefixCache. The node's end behaves like the calls in
// services/, with a Link in place of gRPC. Either end may disappear before the other notices.
// Thread safety: none. Ownership: held by its scheduled events, by the World while the worker waits
// for the call, and by the Node while the call holds objects of the store.
#ifndef HEARTH_TESTS_SIMULATION_FLOW_H_
#define HEARTH_TESTS_SIMULATION_FLOW_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "services/inference/store_stream.h"
#include "tests/simulation/link.h"
#include "tests/simulation/node.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/sim_worker.h"
#include "tests/simulation/timeline.h"

namespace hearth {

// State that all calls of one worker share.
struct Peer {
  int number = 0;
  Timeline* time = nullptr;
  Node* node = nullptr;
  Oracle* oracle = nullptr;
  Link* link = nullptr;
  SimWorker* worker = nullptr;
  CircuitBreaker breaker;
  // The prompt of each running request, by request id.
  std::map<std::string, size_t> prompts;
};

class Flow : public ServedCall, public std::enable_shared_from_this<Flow> {
 public:
  static std::shared_ptr<Flow> Make(Peer* peer, std::shared_ptr<CacheCall> call, Dice dice);

  // Starts the call at the worker's end.
  void Start();
  // The worker's end notices that the connection is lost.
  void ConnectionLost() { Fail(absl::UnavailableError("the connection is lost")); }
  // The worker's end cancels the call.
  void Cancel() { Fail(absl::CancelledError("cancelled")); }
  void WorkerDied() { is_over_ = is_worker_dead_ = true; }
  // The node's end notices that the connection is lost, and releases the store's objects.
  void StopServing() override {
    if (is_served_) EndServing();
    is_served_ = false;
  }
  bool is_served() const override { return is_served_; }
  // Called when all threads of the worker's engine wait for the world.
  virtual void OnEngineRest() {}
  // Returns whether the call has ended at the worker's end.
  virtual bool is_done() const { return is_over_; }

 protected:
  Flow(Peer* peer, std::shared_ptr<CacheCall> call, Dice dice)
      : peer_(peer), call_(std::move(call)), dice_(dice) {}

  void Enter();                   // the call arrives at the node; runs there
  virtual void Begin() = 0;       // starts serving the call; runs at the node
  virtual void EndServing() = 0;  // releases the store's objects
  // turns an error into the reply that the call gives to the engine
  virtual void SetFailure(const absl::Status& error) = 0;
  virtual absl::Duration Budget() const = 0;
  // Returns whether the node continues to serve the call after the worker got its answer; true for
  // a lease.
  virtual bool KeepsServing() const { return false; }

  // ToNode and ToWorker send a message. `then` runs at the receiving end when the message arrives,
  // unless that end is gone.
  void ToNode(std::function<void()> then);
  void ToWorker(std::function<void()> then);
  void FailAtNode(const absl::Status& status);
  // Ends the call at the worker's end.
  void Answer(const std::string& what);
  void Fail(const absl::Status& status);
  void ReleaseAtNode();
  void SetDeadline(absl::Duration budget);

  Ledger* ledger() const { return peer_->node->ledger(); }
  Store* store() const { return peer_->node->store(); }
  std::string CallName() const;
  // Returns whether a disk fault may be the reason for a failure of the call.
  bool MayFail() const { return peer_->node->is_damaged() || peer_->node->was_struck(); }
  PrefixQuery Query() const;

  Peer* const peer_;
  const std::shared_ptr<CacheCall> call_;
  Dice dice_;
  absl::Time began_;
  // a message from the node arrived, so the worker knows that the store is up
  bool has_answer_ = false;
  bool is_over_ = false;    // the call has ended at the worker
  bool is_served_ = false;  // the node is serving the call
  bool is_worker_dead_ = false;
  bool gives_up_ = false;  // whether the worker cancels the call while the node is computing keys
  uint64_t deadlines_ = 0;
  absl::Time last_to_node_ = absl::UnixEpoch(), last_to_worker_ = absl::UnixEpoch();
  absl::Duration trickle_;  // delay between two messages of a slow stream
};

// Deadlines of the worker's cache calls, as in EngineOptions, but in virtual time.
inline constexpr absl::Duration kFetchBudget = absl::Seconds(2);
inline constexpr absl::Duration kPublishBudget = absl::Seconds(30);

std::shared_ptr<Flow> MakeFetchFlow(Peer* peer, std::shared_ptr<CacheCall> call, Dice dice);
std::shared_ptr<Flow> MakeLeaseFlow(Peer* peer, std::shared_ptr<CacheCall> call, Dice dice);
std::shared_ptr<Flow> MakePublishFlow(Peer* peer, std::shared_ptr<CacheCall> call, Dice dice);

}  // namespace hearth

#endif  // HEARTH_TESTS_SIMULATION_FLOW_H_
