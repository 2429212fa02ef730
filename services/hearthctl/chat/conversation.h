// Conversation: turns of a person and of the model, each asked of a worker with all before it.
//
// Thread safety: none. Ownership: borrows all that it is given.
#ifndef HEARTH_SERVICES_HEARTHCTL_CHAT_CONVERSATION_H_
#define HEARTH_SERVICES_HEARTHCTL_CHAT_CONVERSATION_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/inference.grpc.pb.h"
#include "services/cli/connection.h"
#include "services/cli/console.h"
#include "services/hearthctl/chat/line_source.h"
#include "services/hearthctl/generation.h"
#include "services/hearthctl/interrupt.h"

namespace hearth {

class Conversation {
 public:
  // `worker`: as for a single one; its address is not used, but those of `workers`, of which any
  // may go away. `file`: where `first` came from, if it came from one. REQUIRES: workers is not
  // empty.
  Conversation(const GenerationFlags& generation, bool json, PeerFlags worker,
               std::vector<std::string> workers, Interrupt* interrupt, Console* console,
               v1::Chat first, std::string file);

  // Connects to the first worker in turn that answers, beginning with the present one. The error
  // names all that were tried.
  absl::Status Connect();
  // Until the end of input. REQUIRES: connected. Without a terminal it fails when no worker is
  // left; at one, the person is told, and may ask again.
  int Run(LineSource* lines);

 private:
  // Of a line such as "/save talk.json". False: end the conversation.
  bool Command(const std::string& line);
  void Save(const std::string& path);
  void Load(const std::string& path);
  // Adds the turn and its answer.
  int Answer(const std::string& text);
  GenerationResult Ask(const v1::GenerateRequest& request);
  int Finish(const GenerationResult& result);
  void Tell(const std::string& text);
  void PrintDimmed(const std::string& text, std::ostream& out) const;

  const GenerationFlags& generation_;
  const bool json_;
  PeerFlags worker_;  // the present one
  const std::vector<std::string> workers_;
  size_t present_ = 0;
  std::unique_ptr<v1::Inference::Stub> stub_;
  Interrupt* const interrupt_;
  Console* const console_;
  const v1::Chat first_;
  v1::Chat chat_;
  absl::Status failure_;  // of the last call, with the worker that it was asked of
  std::string file_;      // that may be replaced: it was loaded or saved
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_CHAT_CONVERSATION_H_
