// WorkerChoice: the worker that is asked, of several of which any may go away.
//
// Thread safety: none. Errors name all that were tried.
#ifndef HEARTH_SERVICES_HEARTHCTL_CHAT_WORKER_CHOICE_H_
#define HEARTH_SERVICES_HEARTHCTL_CHAT_WORKER_CHOICE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/inference.grpc.pb.h"
#include "services/cli/connection.h"

namespace hearth {

class WorkerChoice {
 public:
  // `flags`: as for a single one; their address is not used. REQUIRES: addresses is not empty.
  WorkerChoice(PeerFlags flags, std::vector<std::string> addresses);

  // Connects to the first in turn that answers, beginning with the present one.
  absl::Status Connect();
  // The same, but the present one's turn comes last.
  absl::Status ConnectToNext();

  // REQUIRES: connected.
  v1::Inference::Stub* stub() const { return stub_.get(); }
  const PeerFlags& peer() const { return flags_; }
  size_t count() const { return addresses_.size(); }

 private:
  PeerFlags flags_;  // of the present one
  const std::vector<std::string> addresses_;
  size_t present_ = 0;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_CHAT_WORKER_CHOICE_H_
