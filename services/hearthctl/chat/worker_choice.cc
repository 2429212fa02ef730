#include "services/hearthctl/chat/worker_choice.h"

#include <cassert>

#include "absl/strings/str_cat.h"
#include "services/cli/console.h"

namespace hearth {

WorkerChoice::WorkerChoice(PeerFlags flags, std::vector<std::string> addresses)
    : flags_(std::move(flags)), addresses_(std::move(addresses)) {
  assert(!addresses_.empty());
  flags_.address = addresses_[0];
}

absl::Status WorkerChoice::Connect() {
  absl::Status failure;
  for (size_t tried = 0; tried < addresses_.size(); ++tried) {
    flags_.address = addresses_[present_];
    auto channel = hearth::Connect(flags_);
    if (channel.ok()) {
      stub_ = v1::Inference::NewStub(*channel);
      return absl::OkStatus();
    }
    failure = failure.ok()
                  ? channel.status()
                  : NotReached(absl::StrCat(failure.message(), "; ", channel.status().message()));
    if (!absl::IsUnavailable(channel.status())) return failure;
    present_ = (present_ + 1) % addresses_.size();
  }
  return failure;
}

absl::Status WorkerChoice::ConnectToNext() {
  present_ = (present_ + 1) % addresses_.size();
  return Connect();
}

}  // namespace hearth
