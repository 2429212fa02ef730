// completion, man and reference: hearthctl's own flags, for shells and for readers.
#include <string>

#include "services/hearthctl/commands.h"

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

// Which page about the whole program to print.
struct PageFlags {
  const CommandLine* line = nullptr;
  std::string (*page)(const ProgramText&) = nullptr;
};

int RunPage(const PageFlags& flags, Console& console) {
  console.out << flags.page(flags.line->Describe()) << std::flush;
  return kExitOk;
}

}  // namespace

void AddSelfCommands(CommandLine* line) {
  const auto add = [line](const char* name, const char* what, const char* examples, auto page) {
    const auto added = line->Add<PageFlags>(name, what, examples, RunPage);
    *added.second = {line, page};
    return added;
  };
  const auto completion =
      add("completion", "Print what bash or zsh completes by", kCompletionExamples, BashCompletion);
  const auto choose = [flags = completion.second](int is_zsh) {
    if (is_zsh == 1) flags->page = ZshCompletion;
  };
  AddChoice(completion.first, "shell", {{"bash", 0}, {"zsh", 1}}, choose, "whose completion")
      ->required();
  add("man", "Print the manual page, in troff", kManExamples,
      [](const ProgramText& program) { return ManPage(program, "1"); });
  add("reference", "Print all commands and flags, in Markdown", kReferenceExamples, ReferencePage);
}

}  // namespace hearth
