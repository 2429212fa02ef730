// Conversation: turns of a person and of the model, each asked of a worker with all before it.
//
// Thread safety: none. Ownership: borrows all that it is given.
#ifndef HEARTH_SERVICES_HEARTHCTL_CHAT_CONVERSATION_H_
#define HEARTH_SERVICES_HEARTHCTL_CHAT_CONVERSATION_H_

#include <string>

#include "services/cli/console.h"
#include "services/hearthctl/chat/line_source.h"
#include "services/hearthctl/chat/worker_choice.h"
#include "services/hearthctl/generation.h"
#include "services/hearthctl/interrupt.h"

namespace hearth {

class Conversation {
 public:
  // `file`: where `first` came from, if it came from one.
  Conversation(const GenerationFlags& generation, bool json, WorkerChoice* workers,
               LineSource* lines, Interrupt* interrupt, Console* console, v1::Chat first,
               std::string file);

  // Until the end of input. Without a terminal it fails when no worker is left; at one, the person
  // is told, and may ask again.
  int Run();

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
  WorkerChoice* const workers_;
  LineSource* const lines_;
  Interrupt* const interrupt_;
  Console* const console_;
  const v1::Chat first_;
  v1::Chat chat_;
  absl::Status failure_;  // of the last call, with the worker that it was asked of
  std::string file_;      // that may be replaced: it was loaded or saved
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_CHAT_CONVERSATION_H_
