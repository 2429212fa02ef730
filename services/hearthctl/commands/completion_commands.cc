// completion and man: hearthctl's own flags, for shells and for readers.
#include <functional>

#include "services/hearthctl/command_set.h"

namespace hearth {
namespace {

constexpr char kCompletionExamples[] =
    R"(  source <(hearthctl completion bash)                             (this shell)
  hearthctl completion bash > ~/.local/share/bash-completion/completions/hearthctl
  source <(hearthctl completion zsh)                   (in ~/.zshrc, behind compinit)
)";
constexpr char kManExamples[] =
    R"(  hearthctl man | man -l -
  hearth-store --man | man -l -          (the servers have a flag for it)
)";

constexpr char kReferenceExamples[] =
    R"(  hearthctl reference
  hearth-store --reference               (the others have a flag for it)
)";

constexpr char kCodes[] = R"(
## Exit codes

Of hearthctl, hearth-simulate, and the programs of the Python package. But for 0 one line on stderr
says what, where and what to do.

| code | meaning |
| --- | --- |
| 0 | done |
| 1 | failed, or a difference or damage was found, or the output could not be written |
| 2 | wrong usage: the same words will fail again |
| 3 | the server was not reached |
| 130 | interrupted |

Of hearth-store and hearth-worker: 0 after a drain, 1 could not start, 2 a wrong flag.

## Errors of calls

| gRPC code | meaning | what to do |
| --- | --- | --- |
| INVALID_ARGUMENT | a field is wrong: the message, and a BadRequest, name it | correct it |
| NOT_FOUND | no restore point, or no request, of this id and tenant | |
| FAILED_PRECONDITION | the server lacks what this needs, or a state fits not | ask another |
| RESOURCE_EXHAUSTED | a limit is reached for now | again after the trailer `retry-after-ms` |
| UNAVAILABLE | the server drains, or a worker's store is not reached | another server, or later |
| UNAUTHENTICATED | no identity, or an unknown one | pass a token or a certificate |
| PERMISSION_DENIED | the identity may not do this, or not for this tenant | |
| DATA_LOSS | bytes failed their verification | send them again |
| ABORTED | another call was first | try again |
| UNIMPLEMENTED | no such method, or a compressed message | |
| DEADLINE_EXCEEDED, CANCELLED | the time was over, or the caller hung up or was too slow | |
| INTERNAL, UNKNOWN | a mistake of the server | report it |
)";

struct SelfFlags {
  // Of the whole program, when it is asked for.
  std::function<ProgramText()> describe;
  bool is_zsh = false;
};

int RunCompletion(const SelfFlags& flags, Console& console) {
  const ProgramText program = flags.describe();
  console.out << (flags.is_zsh ? ZshCompletion(program) : BashCompletion(program)) << std::flush;
  return kExitOk;
}

int RunMan(const SelfFlags& flags, Console& console) {
  console.out << ManPage(flags.describe(), "1") << std::flush;
  return kExitOk;
}

int RunReference(const SelfFlags& flags, Console& console) {
  console.out << ReferencePage(flags.describe()) << kCodes << std::flush;
  return kExitOk;
}

}  // namespace

void AddCompletionCommands(CommandSet* commands) {
  const auto [completion, flags] = commands->Add<SelfFlags>(
      "completion", "Print what bash or zsh completes by", kCompletionExamples, RunCompletion);
  const auto choose = [chosen = flags](int shell) { chosen->is_zsh = shell == 1; };
  completion->AddChoice("shell", {{"bash", 0}, {"zsh", 1}}, choose, "whose completion").Required();
  const auto [man, page] =
      commands->Add<SelfFlags>("man", "Print the manual page, in troff", kManExamples, RunMan);
  const auto [reference, markdown] = commands->Add<SelfFlags>(
      "reference", "Print all commands and flags, in Markdown", kReferenceExamples, RunReference);
  flags->describe = page->describe =
      markdown->describe = [commands] { return commands->Describe(); };
  static_cast<void>(man);
  static_cast<void>(reference);
}

}  // namespace hearth
