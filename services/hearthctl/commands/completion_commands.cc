// completion and man: hearthctl's own flags, for shells and for readers.
#include <functional>
#include <string>

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
  std::string shell;
};

int RunCompletion(const SelfFlags& flags, Console& console) {
  if (flags.shell != "bash" && flags.shell != "zsh") {
    return FailUsage(console, "\"" + flags.shell + "\" is no shell that is known: bash, zsh");
  }
  const ProgramText program = flags.describe();
  console.out << (flags.shell == "bash" ? BashCompletion(program) : ZshCompletion(program))
              << std::flush;
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
  completion->Add("shell", &flags->shell, "bash or zsh").Required();
  const auto [man, page] =
      commands->Add<SelfFlags>("man", "Print the manual page, in troff", kManExamples, RunMan);
  flags->describe = page->describe = [commands] { return commands->Describe(); };
  static_cast<void>(man);
}

}  // namespace hearth
