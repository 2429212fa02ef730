// completion and man: hearthctl's own flags, for shells and for readers.
#include <functional>

#include "services/hearthctl/command_set.h"

namespace hearth {
namespace {

constexpr char kCompletionExamples[] =
    R"(  source <(hearthctl completion bash)                             (this shell)
  hearthctl completion bash > ~/.local/share/bash-completion/completions/hearthctl
  hearthctl completion zsh > ~/.zfunc/_hearthctl                  (a folder of $fpath)
)";
constexpr char kManExamples[] =
    R"(  hearthctl man | man -l -
  hearth-store --man | man -l -          (the servers have a flag for it)
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

}  // namespace

void AddCompletionCommands(CommandSet* commands) {
  const auto [completion, flags] = commands->Add<SelfFlags>(
      "completion", "Print what bash or zsh completes by", kCompletionExamples, RunCompletion);
  const auto choose = [chosen = flags](int shell) { chosen->is_zsh = shell == 1; };
  completion->AddChoice("shell", {{"bash", 0}, {"zsh", 1}}, choose, "whose completion").Required();
  const auto [man, page] =
      commands->Add<SelfFlags>("man", "Print the manual page, in troff", kManExamples, RunMan);
  flags->describe = page->describe = [commands] { return commands->Describe(); };
  static_cast<void>(man);
}

}  // namespace hearth
